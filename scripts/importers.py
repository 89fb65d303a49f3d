"""importers - what the benches write, as values of the figures: for scripts/figures --import

An importer takes the JSON documents of a bench (scripts/bench NAME writes them, one behind the other) and gives for each of its figures the
values of rows, by their names. Other rows, and values that are None or ..., stay as they are.
"""
import json, re
from statistics import median


def documents(path):
    """The JSON documents of a file, one behind the other."""
    with open(path) as file:
        text = file.read()
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def ratio(value):
    return {'value': None, 'text': f'{value:.2f}'}


def several(values, digits):
    """What a cell shows of several runs: all of them; the bar has the first."""
    if len(values) == 1:
        return round(values[0], digits)
    return {'value': values[0], 'text': ' and '.join(f'{value:,.{digits}f}' for value in values)}


EXPORT_JOBS = [('4k', 'randread'), ('128k', 'read'), ('128k', 'write'), ('4k', 'randwrite')]


def exports(results):
    titles = {'FUSE and a direct-I/O loop device, file through the page cache': 'FUSE and loop, page cache',
              'FUSE and a direct-I/O loop device, file: ours with direct I/O, theirs through the page cache':
                  'FUSE and loop, ours with direct I/O, theirs from the page cache'}
    rows = {}
    for row in results:
        if row['name'] != 'ashlar':
            name = f'{titles.get(row["title"], row["title"])}, against {row["name"]}'
            rows.setdefault(name, [None] * 4)[EXPORT_JOBS.index(tuple(row['job'][:2]))] = round(row['ratio'], 2)
    return {'exports': rows}


def threads(results):
    names = {'ashlar with io_uring': 'against ashlar with io_uring',
             'qemu-storage-daemon': 'against qemu-storage-daemon with aio=threads', 'ashlar': 'I/Os per second'}
    rows = {name: [None] * 4 for name in names.values()}
    for row in results:
        own = row['name'] == 'ashlar'
        rows[names[row['name']]][EXPORT_JOBS.index(tuple(row['job'][:2]))] = \
            {'value': None, 'text': f'{row["iops"]:,.0f}'} if own else round(row['ratio'], 2)
    return {'threads': rows}


def tls(results):
    rows = {row['name']: [None] * 4 for row in results}
    rows['times nbdkit'] = [None] * 4
    for row in results:
        at = EXPORT_JOBS.index(tuple(row['job'][:2]))
        rows[row['name']][at] = {'value': round(row['iops'] / 1000, 1), 'text': f'{row["iops"] / 1000:,.1f} ({row["least"] / 1000:,.1f} to {row["most"] / 1000:,.1f})'}
        if row['name'] != 'ashlar':
            rows['times nbdkit'][at] = ratio(row['ratio'])
    return {'tls': rows}


def connections(results):
    """A row for each kind of I/O and server, a column for each number of connections."""
    rows, counts = {}, [1, 2, 4, 8]
    for row in results:
        block, pattern, _, count = row['job']
        where = 'RAM' if 'RAM' in row['title'] else 'file'
        kind = f'{where}, {block[:-1]} KiB {"random " if "rand" in pattern else ""}{pattern.removeprefix("rand")}s'
        at = counts.index(count)
        middle, least, most = (round(row[key] / 1000, 1) for key in ('iops', 'least', 'most'))
        rows.setdefault(f'{kind}, {row["name"]}', [None] * len(counts))[at] = {
            'value': middle, 'text': f'{middle:,.1f} ({least:,.1f} to {most:,.1f})'}
        if row['name'] != 'ashlar':
            rows.setdefault(f'{kind}: times the peer\'s rate', [None] * len(counts))[at] = ratio(row['ratio'])
    return {'connections': rows}


def vhost(results):
    """A row for each disk and server, a column for each kind of I/O."""
    columns, rows = [], {}
    for row in results:
        job = tuple(row['job'])
        if job not in columns:
            columns.append(job)
    for row in results:
        where = 'RAM' if 'RAM' in row['title'] else 'file'
        at = columns.index(tuple(row['job']))
        middle, least, most = (round(row[key] / 1000, 1) for key in ('iops', 'least', 'most'))
        rows.setdefault(f'{where}, {row["name"]}', [None] * len(columns))[at] = {
            'value': middle, 'text': f'{middle:,.1f} ({least:,.1f} to {most:,.1f})'}
        if row['name'] != 'ashlar':
            rows.setdefault(f'{where}: times {row["name"]}', [None] * len(columns))[at] = ratio(row['ratio'])
    return {'vhost': rows}


def ublk(results):
    """A row for each way, a column for each kind of I/O."""
    columns, rows = list(dict.fromkeys(tuple(row['job']) for row in results)), {}
    for row in results:
        at = columns.index(tuple(row['job']))
        rows.setdefault(row['name'], [None] * len(columns))[at] = {
            'value': round(row['iops']), 'text': f'{row["iops"]:,.0f} ({row["least"]:,.0f} to {row["most"]:,.0f})'}
        if row['name'] != 'ublk':
            rows.setdefault(f'times {row["name"]}', [None] * len(columns))[at] = ratio(row['ratio'])
    return {'ublk': rows}


def discards(results):
    by_step = {(row['configuration'], row['step']): row for row in results}
    rows = {}
    for configuration, name in (('RAID0', 'ashlar, RAID0'), ('RAID10', 'ashlar, RAID10')):
        make, trim = (by_step[configuration, step] for step in ('mkfs.xfs', 'fstrim'))
        counts = (f'{make[count]:,} / {trim[count]:,}' for count in ('bios', 'sent', 'commands'))
        rows[name] = [make['seconds'], trim['seconds'], *counts]
    slow = []
    for step in ('mkfs.xfs', 'fstrim'):
        row = by_step['RAID10, 512 KiB discards', step]
        cut = re.match(r'CUT OFF at (\S+) %: (\d+)m(\d+)s', row['note'])
        if cut:
            seconds = int(cut[2]) * 60 + int(cut[3])
            slow.append({'value': seconds, 'label': f'{seconds}, extrapolated',
                         'text': f'cut at {cut[1]} % after {row["seconds"]:.0f} ({int(cut[2])} m {int(cut[3])} s extrapolated)'})
        else:
            slow.append(row['seconds'])
    rows['ashlar, RAID10, discard_max_bytes 524288'] = [*slow, None, None, None]
    return {'discards': rows}


def lvm_snapshot(reports):
    rows = {}
    for report in reports:
        # The image file as it is, and then as the model.
        for disk, image in zip(report['disks'], (True, False), strict=True):
            if report['mounted'] and image:
                continue
            name = 'the same, mounted' if report['mounted'] else 'ashlar, the file as it is' if image else 'ashlar, the model'
            rows.setdefault(name, []).append(disk)
    return {'lvm-snapshot': {name: [several([run['rows'][0]['seconds'] for run in runs], 2),
                                    several([run['rows'][1]['seconds'] for run in runs], 2),
                                    several([run['gain'] for run in runs], 1), several([run['of_plain'] for run in runs], 2)]
                             for name, runs in rows.items()}}


def btrfs_scrub(reports):
    runs = {report['csum']: report for report in reports}
    columns = [runs.get(csum) for csum in ('crc32c', 'xxhash', 'sha256', 'blake2')]
    values = lambda key, shape: [run and shape(run[key]) for run in columns]
    return {'btrfs-scrub': {'the kernel': values('kernel', round), 'ashlar': values('ashlar', round),
                            'times as fast': values('of_kernel', ratio)}}


def btrfs_readahead(reports):
    names = {'sata-ssd': 'SATA SSD', 'hdd-5400': 'hard disk, 5400 rpm'}
    models, modes = {}, {}
    for report in reports:
        # On a disk that the files nearly fill, most extents are of 4 KiB; otherwise a file is one.
        is_small = report['image_bytes'] < 1 << 40
        for disk in report['models']:
            of = {mode['readahead']: mode['mib_per_second'] for mode in disk['modes']}
            rates = [of[mode] for mode in ('none', 'forward', 'forward-always', 'scan')]
            name = names[disk['disk']] + (', extents of 4 KiB' if is_small else '')
            models[name] = [..., *(round(rate, 1) for rate in [*rates, disk['ideal']])]
        if not is_small:
            modes['the kernel'] = [round(report['kernel']), ..., ...]
            for mode in report['modes']:
                modes[mode['readahead']] = [round(mode['mib_per_second']), mode['waits'], mode['ahead']]
    return {'btrfs-readahead': models, 'btrfs-modes': modes}


def zvol(reports):
    streams, loop = {}, {}
    size = lambda bytes: f'{bytes >> 20}M' if bytes >> 20 else f'{bytes >> 10}K'
    volumes = {volume['volblocksize_bytes']: volume for report in reports for volume in report['volumes']}
    for block, volume in volumes.items():
        for kind, name in (('writes', 'write'), ('reads_from_memory', 'read from memory')):
            of = {(row['queue'], row['bio_bytes']): row['megabytes_per_second'] for row in volume[kind]}
            rates = [of[queue, bio] for bio in (4 << 10, 1 << 20) for queue in (False, True)]
            streams[f'ashlar, volblocksize {size(block)}: {name}'] = [
                round(rates[0]), round(rates[1]), round(rates[1] / rates[0], 2), round(rates[2]), round(rates[3])]
    blocks = [volumes.get(block) for block in (1 << 20, 128 << 10, 16 << 10, 8 << 10)]
    values = lambda key, shape: [volume and shape(volume['ceiling']['answered'][key]) for volume in blocks]
    loop = {'plain loop': values('plain', round), 'queue off': values('off', round), 'queue on': values('on', round),
            'queue off: share of the loop': values('off_of_plain', ratio),
            'queue on: share of the loop': values('on_of_plain', ratio)}
    return {'zvol': streams, 'zvol-loop': loop}


def zvol_clients(reports):
    rows = {}
    size = lambda bytes: f'{bytes >> 20}M' if bytes >> 20 else f'{bytes >> 10}K'
    for volume in (volume for report in reports for volume in report['volumes']):
        of = {(row['client'], row['way'], row['queue']): row for row in volume['rows']}
        for client, way, queue in of:
            if not queue:
                off, on = of[client, way, False], of[client, way, True]
                both = lambda *keys: ', '.join(f'{sum(row[key] for key in keys):.2f}' for row in (off, on))
                rates = [row['megabytes_per_second'] for row in (off, on)]
                rows[f'ashlar, {size(volume["volblocksize_bytes"])}, {client}: {way}'] = [
                    round(rates[0]), round(rates[1]), round(rates[1] / rates[0], 2), both('seconds'),
                    both('client_system_seconds', 'daemon_system_seconds'), both('client_user_seconds', 'daemon_user_seconds'),
                    f'{on["merged"] / (on["requests"] + on["merged"]):.2f}']
    return {'zvol-clients': rows}


def barrier(tables):
    rows = {}
    for table in tables:
        if table['title'].startswith('the raises'):  # not a rate of I/Os
            continue
        of = {row['name']: row['values'] for row in table['rows']}
        for name, subject in (('ashlar', '1,024 buckets, no lock'), ('one lock', 'one bucket, one lock')):
            rows[f'{table["title"]}, {name}'] = [round(value) for value in of[subject]]
    return {'barrier': rows}


def reads(tables):
    names = {'fio io_uring': 'fio, io_uring', 'queue': 'engine (sequential: merging)', 'bare file': 'bare file',
             'raid1 of 2': 'RAID1 of 2', 'raid10 n2 of 4': 'RAID10 n2 of 4'}
    rows = {}
    for table in tables:
        order, _, rest = table['title'].partition(' 4 KiB')
        if rest.startswith(', page cache'):
            continue
        for row in table['rows']:
            if name := names.get(row['name']):
                values = rows.setdefault(name, [...] * 4)
                at = 0 if order == 'random' else 2
                values[at:at + 2] = round(row['values'][0]), round(row['values'][1], 2)
    return {'reads': rows}


def nomerges(tables):
    rows = {}
    for table in tables:
        device = table['title'].rpartition(': ')[2]
        at = 1 if table['title'].startswith('CPU') else 0
        for row in table['rows']:
            values = rows.setdefault(f'{device}, {row["name"]}', [...] * 6)
            values[at::2] = [round(value) for value in row['values']]
    return {'nomerges': rows}


def ratios(table, of, than):
    """The median over the rounds of the rate of a row divided by the rate of another, by column."""
    rounds = {row['name']: row['rounds'] for row in table['rows']}
    return dict(zip(table['columns'], (median(a / b for a, b in zip(*pair, strict=True))
                                       for pair in zip(rounds[of], rounds[than], strict=True)), strict=True))


def spread(values):
    """A ratio, or the range of several."""
    low, high = (f'{pick(values):.2f}' for pick in (min, max))
    return {'value': None, 'text': low if low == high else f'{low} to {high}'}


def healing(tables):
    """Columns: RAM, files, virtual NVMe, virtual SATA, mixed pairs of virtual disks."""
    of = {table['title']: table for table in tables}
    ram = of['RAID1 of 2 RAM disks, jobs of depth 128']
    ssds = of['RAID1 of 2 SSDs in virtual time, depth 128']

    def beside(barrier):
        pair = f'{barrier}, resync of 50 MiB/s', f'{barrier}, no resync'
        by_column = ratios(ssds, *pair)
        kinds = [[ratio for column, ratio in by_column.items() if column.startswith(kind)] for kind in ('NVMe', 'SATA')]
        return [spread(ratios(ram, *pair).values()), None, *map(spread, kinds), None]

    def two(row):
        files, nvme = (spread(ratios(of[title], row, 'one member').values())
                       for title in ('Two files, direct I/O', 'Two NVMe disks in virtual time'))
        return [None, files, nvme, None, None]

    def bitmap(row):
        by_column = ratios(of['Random writes of 4 KiB, depth 32, RAID1 of two'], row, 'no bitmap')
        return [*(spread([by_column[column]]) for column in ('RAM', 'files', 'NVMe, virtual')), None, None]

    def resync(files, virtual):
        virtual = virtual and spread(ratios(of['Resync of idle arrays, virtual time'], 'resync, RAID1', virtual).values())
        return [None, spread(ratios(of['Resync of idle arrays, files with direct I/O'], 'resync, RAID1', files).values()),
                None, None, virtual]

    return {'healing': {
        'I/O beside a resync of 50 MiB/s in other buckets': beside('md'),
        'the same with one global barrier': beside('global'),
        'RAID1 of two, reads against one member': two('RAID1'),
        'both members without md, against one': two('both without md'),
        'random writes of 4 KiB, internal bitmap': bitmap('internal'),
        'the same, marks of 64 KiB': bitmap('internal, 64 KiB to a mark'),
        'the same, lockless bitmap': bitmap('lockless'),
        'resync against the slower member alone': resync('slower member alone', 'slower member alone'),
        'resync against a copy without md': resync('both without md, depth 8', None)}}


def readers(tables):
    """Rates of arrays, and of the barrier alone, behind the NBD server; columns are connections."""
    rows = {}
    for table in tables:
        if table['title'].startswith('CPU'):
            continue
        for row in table['rows']:
            rows[f'{table["title"]}: {row["name"]}'] = [round(value, 1) for value in row['values']]
    return {'readers': rows}


def parity(tables):
    """Rates of arrays on RAM disks: a table for large I/O, one for small, one of arrays that lack members; recoveries against the slowest member."""
    of = {table['title']: table for table in tables}
    rows, lacking, recoveries = {}, {}, {}
    for title, place in (('Arrays with parity, sequential, depth 8, RAM disks', 0), ('Arrays with parity, random, depth 32, RAM disks', 3)):
        for row in of[title]['rows']:
            values = rows.setdefault(row['name'], [None] * 6)
            for column, value in enumerate(row['values']):
                values[place + column] = round(value / 1000, 1) if place == 0 else round(value)
    for row in of['Arrays with parity, sequential, depth 8, RAM of 1 GB/s']['rows']:
        rows[row['name']][5] = round(row['values'][0] / 1000, 2)
    rates, costs = (of[title]['rows'] for title in ('Random reads of 4 KiB of arrays that lack members, depth 32, RAM disks',
                                                    'Reads of members for a read of 4 KiB'))
    for rate, cost in zip(rates, costs, strict=True):
        lacking[rate['name']] = [round(rate['values'][0]), *(round(value, 2) for value in cost['values'])]
    for place, title in enumerate(('Recovery, NVMe disks, a SATA SSD is slower, virtual time', 'Recovery, SATA SSDs, a hard disk is slower, virtual time',
                                   'Recovery, RAM of 600 MB/s, of 200 MB/s is slower')):
        alone, *others = of[title]['rows']
        for row in others:
            for column, slow in enumerate(of[title]['columns']):
                found = [ours / slowest for ours, slowest in zip(row['rounds'][column], alone['rounds'][column], strict=True)]
                least, middle, most = (f'{pick(found):.2f}' for pick in (min, median, max))
                text = middle if least == most else f'{middle} ({least} to {most})'
                recoveries.setdefault(f'{row["name"]}, slower: {slow}', [None] * 3)[place] = {'value': None, 'text': text}
    return {'parity': rows, 'parity-degraded': lacking, 'parity-recovery': recoveries}


def beside_md(results):
    """A row for each side: writes in a second, processor time for each, the ratio to the kernel with its range."""
    rows = {}
    for row in results:
        ratios = row.get('ratios')
        ratio = ratios and {'value': None, 'text': f'{row["ratio"]:.2f} ({min(ratios):.2f} to {max(ratios):.2f})'}
        rows[row['name']] = [round(row['iops']), round(row['us']), ratio]
    return {'beside-md': rows}


OF = {'exports': exports, 'connections': connections, 'threads': threads, 'tls': tls, 'vhost': vhost, 'ublk': ublk, 'discards': discards, 'lvm-snapshot': lvm_snapshot, 'btrfs-scrub': btrfs_scrub,
      'btrfs-readahead': btrfs_readahead, 'zvol': zvol, 'zvol-clients': zvol_clients, 'barrier': barrier, 'reads': reads, 'nomerges': nomerges,
      'healing': healing, 'parity': parity, 'beside-md': beside_md, 'readers': readers}
# The figures that have a row for each peer that was there.
GROWING = ('exports', 'connections', 'vhost', 'zvol-clients')

#!/usr/bin/python3
"""top.py - draw docs/pictures/top.svg: ashlar top in a terminal (tmux), on a daemon with arrays under load

usage: docs/pictures/top.py [PROGRAM]        writes top.svg beside this file, and prints what is in it as text;
                                             PROGRAM is target/debug/ashlar unless another one is given

Needs tmux and python3-libnbd. The disks have the timing of device models, so that the figures are like those of real ones.
"""
import html, os, re, subprocess, sys, tempfile, threading, time

import nbd

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ASHLAR = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f'{ROOT}/target/debug/ashlar')
WIDTH, HEIGHT = 128, 14
CELL, LINE, MARGIN = 7.3, 16, 12
BACK, INK = '#1b1e23', '#d6d9de'
COLOURS = {0: '#1b1e23', 1: '#ff6b64', 2: '#6fcf83', 6: '#57c7d4', 7: INK}


def capture(folder):
    """The screen of ashlar top, with its escape sequences."""
    def run(*args):
        return subprocess.run([ASHLAR, *args], cwd=folder, check=True, capture_output=True, text=True)

    def tmux(*args):
        return subprocess.run(['tmux', '-S', f'{folder}/tmux', '-f', '/dev/null', *args], check=True, capture_output=True, text=True).stdout

    for name in ('sda', 'sdb', 'sdc', 'sdd', 'nvme'):
        with open(f'{folder}/{name}', 'wb') as file:
            file.truncate(256 << 20)
    run('md', 'create', '-l1', '-n2', '--homehost=any', '--assume-clean', '/dev/md/mirror', 'sda', 'sdb')
    run('md', 'create', '-l10', '-n2', '--homehost=any', '--assume-clean', '/dev/md/data', 'sdc', 'sdd')
    models = ['--model', 'sata-ssd', '--model', 'nvme=nvme']
    daemon = subprocess.Popen([ASHLAR, 'serve', 'sda', 'sdb', 'sdc', 'sdd', 'nvme', '--control', 'control', '--nbd', 'unix:nbd', *models],
                              cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        while daemon.stdout.readline() != 'ready\n':
            pass
        run('md', 'fail', 'md/mirror', 'sdb', '--control', 'control')
        run('set', 'sys/block/md127/md/sync_speed_max', '2000', '--control', 'control')
        run('md', 'action', 'md/data', 'check', '--no-wait', '--control', 'control')
        ended = threading.Event()

        def load(volume, size):
            handle = nbd.NBD()
            handle.connect_uri(f'nbd+unix:///{volume}?socket={folder}/nbd')
            at = 0
            while not ended.is_set():
                handle.pwrite(b'x' * size, at)
                handle.pread(size, (at * 7) % (64 << 20))
                at = (at + size) % (64 << 20)
                if at % (size * 64) == 0:
                    handle.flush()

        loads = [('md/data', 4096), ('md/data', 65536), ('md/mirror', 16384), ('nvme', 131072)]
        threads = [threading.Thread(target=load, args=args) for args in loads]
        for thread in threads:
            thread.start()
        tmux('new-session', '-d', '-s', 'top', '-x', str(WIDTH), '-y', str(HEIGHT), 'env', '-u', 'NO_COLOR', 'TERM=screen-256color',
             ASHLAR, 'top', '--control', f'{folder}/control', '-d', '1')

        def see(text):
            deadline = time.monotonic() + 60
            while text not in tmux('capture-pane', '-p', '-t', 'top'):
                if time.monotonic() > deadline:
                    sys.exit(f'top.py: {text} does not appear: {tmux("capture-pane", "-p", "-t", "top")}')
                time.sleep(0.1)

        see('check [')
        tmux('send-keys', '-t', 'top', 't')
        see('  sda ')
        see('up 0:06')
        screen = tmux('capture-pane', '-e', '-N', '-p', '-t', 'top')
        ended.set()
        for thread in threads:
            thread.join()
        return screen
    finally:
        subprocess.run(['tmux', '-S', f'{folder}/tmux', 'kill-server'], capture_output=True)
        daemon.terminate()
        daemon.wait()


def cells(line, style):
    """The characters of a line, each with its style: ink, background, bold."""
    ink, back, bold, reverse = style
    found = []
    for escape, char in re.findall(r'\x1b\[([0-9;]*)m|([^\x1b])', line):
        if char:
            found.append((char, back if reverse else ink, ink if reverse else back, bold))
            continue
        codes = [int(code or 0) for code in escape.split(';')]
        while codes:
            code = codes.pop(0)
            if code == 0:
                ink, back, bold, reverse = 7, None, False, False
            elif code == 1:
                bold = True
            elif code == 7:
                reverse = True
            elif code in (38, 48):
                _, number, *codes = codes
                ink, back = (number, back) if code == 38 else (ink, number)
            elif 30 <= code <= 37:
                ink = code - 30
            elif 40 <= code <= 47:
                back = code - 40
            elif code == 39:
                ink = 7
            elif code == 49:
                back = None
    return found, (ink, back, bold, reverse)


def picture(screen):
    out, style = [], (7, None, False, False)
    lines = screen.rstrip('\n').split('\n')
    for number, line in enumerate(lines):
        found, style = cells(line, style)
        y, start = MARGIN + number * LINE, 0
        while start < len(found):
            end = start
            while end < len(found) and found[end][1:] == found[start][1:]:
                end += 1
            text, (_, ink, back, bold) = ''.join(cell[0] for cell in found[start:end]), found[start]
            x, width = MARGIN + start * CELL, (end - start) * CELL
            if back is not None:
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LINE}" fill="{COLOURS[back]}"/>')
            weight = ' font-weight="bold"' if bold else ''
            # Each word at its place, because viewers differ in what they do with spaces.
            for word in re.finditer(r'\S+', text):
                at, length = x + word.start() * CELL, len(word.group()) * CELL
                out.append(f'<text x="{at:.1f}" y="{y + 12}" textLength="{length:.1f}" fill="{COLOURS[ink]}"{weight}>{html.escape(word.group())}</text>')
            start = end
    w, h = int(WIDTH * CELL + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    return f'''<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">
<title>ashlar top: a degraded array in red, a check with its progress, and the rates, latencies and queues of each device</title>
<style>text {{ font: 12px monospace }}</style>
<rect width="{w}" height="{h}" rx="8" fill="{BACK}"/>
{chr(10).join(out)}
</svg>
'''


with tempfile.TemporaryDirectory() as folder:
    screen = capture(folder)
with open(f'{HERE}/top.svg', 'w') as file:
    file.write(picture(screen))
for line in re.sub(r'\x1b\[[0-9;]*m', '', screen).rstrip('\n').split('\n'):
    print(line.rstrip())

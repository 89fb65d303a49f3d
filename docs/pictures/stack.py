#!/usr/bin/env python3
"""stack.py - draw docs/pictures/stack.svg: what goes in, what ashlar makes of it, and how it comes out

usage: docs/pictures/stack.py        writes stack.svg beside this file
"""
import html, os

W, H = 860, 356
INK, CARD, EDGE = '#20242a', '#fbfbfa', '#c9cdd3'
FILL = {'disk': '#f1dfc6', 'layer': '#d3e6ef', 'export': '#d8ead2', 'use': '#ffffff'}

out = []


def text(x, y, words, kind='', anchor='middle'):
    out.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{html.escape(words)}</text>')


def box(x, y, w, h, kind, title, *lines):
    out.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{FILL[kind]}" stroke="{EDGE}"/>')
    first = y + h / 2 + 5 - 8 * len(lines)
    text(x + w / 2, first, title, 'b')
    for number, line in enumerate(lines):
        text(x + w / 2, first + 16 * (number + 1), line)


def arrow(x, y, to_x, to_y):
    out.append(f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{INK}" stroke-width="1.5" marker-end="url(#a)" marker-start="url(#a)"/>')


# What goes in.
text(102, 40, 'disks', 'h')
box(24, 56, 156, 64, 'disk', 'image files', 'raw; others by nbdfuse')
box(24, 136, 156, 48, 'disk', 'block devices', 'of a dead NAS, a server')
box(24, 200, 156, 48, 'disk', 'RAM, models', 'for tests')

# What ashlar makes of it.
text(388, 40, 'ashlar, no kernel module, no root', 'h')
out.append(f'<rect x="232" y="52" width="312" height="232" rx="8" fill="#ffffff" stroke="{EDGE}"/>')
box(244, 64, 288, 34, 'layer', 'partitions: GPT, MBR')
box(244, 106, 140, 76, 'layer', 'md', 'RAID 0, 1, 10', 'resync, bitmap, check')
box(392, 106, 140, 76, 'layer', 'LVM2', 'linear, striped,', 'snapshots, merge')
box(244, 190, 140, 82, 'layer', 'OpenZFS zvols', 'libzpool in a', 'process of its own')
box(392, 190, 140, 82, 'layer', 'btrfs, unmounted', 'scrub, repair,', 'take files out')
text(388, 304, "partitions, md and LVM nest; formats are the kernel's own")

# How it comes out.
text(676, 40, 'what you use it with', 'h')
box(596, 56, 160, 64, 'export', 'files in a mount', 'dev/ sys/ proc/mdstat')
box(596, 136, 160, 48, 'export', 'NBD', 'unix socket, TCP')
box(596, 200, 160, 48, 'export', 'control socket', 'get, set, status, trace')
for y, words in [(80, 'fuse2fs'), (96, 'debugfs'), (112, 'loop, mkfs'), (157, 'qemu'), (173, 'nbd-client'), (229, 'scripts')]:
    text(766, y, words, anchor='start')

for y in (88, 160, 224):
    arrow(184, y, 228, y)
    arrow(548, y, 592, y)

text(430, 334, 'the same disks run under mdadm, LVM and ZFS in the kernel, before and after', 'b')

picture = f'''<svg xmlns="http://www.w3.org/2000/svg" width="{W}" height="{H}" viewBox="0 0 {W} {H}" role="img">
<title>Disks go in; ashlar assembles partitions, md, LVM, ZFS and btrfs; files, NBD exports and a control socket come out</title>
<style>text {{ font: 12px sans-serif; fill: {INK} }} .b {{ font-weight: bold }} .h {{ font: bold 14px sans-serif }}</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>
<rect x=".5" y=".5" width="{W - 1}" height="{H - 1}" rx="10" fill="{CARD}" stroke="{EDGE}"/>
{chr(10).join(out)}
</svg>
'''
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'stack.svg'), 'w') as file:
    file.write(picture)

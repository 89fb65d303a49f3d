#!/usr/bin/env python3
"""qmp.py SOCKET STEP... - talks QMP with a program of QEMU; prints each result as a line of JSON

A STEP is a command as a JSON object, or event=NAME, which waits for that event: one since the connection began counts, too.
Ends with 1 at the first error, and after two minutes without a message.
"""

import json
import socket
import sys


class Monitor:
    """A connection, with the events that nobody has waited for yet."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r", encoding="utf-8")
        self.events = []
        self.message()
        self.execute({"execute": "qmp_capabilities"})

    def message(self):
        line = self.lines.readline()
        if not line:
            sys.exit("qmp.py: QEMU has closed the connection")
        return json.loads(line)

    def execute(self, command):
        self.socket.sendall(json.dumps(command).encode())
        while True:
            message = self.message()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                sys.exit(f"qmp.py: {command['execute']}: {message['error']['desc']}")
            else:
                return message["return"]

    def wait(self, name):
        while True:
            for event in self.events:
                if event["event"] == name:
                    self.events.remove(event)
                    return event.get("data", {})
            message = self.message()
            if "event" in message:
                self.events.append(message)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    monitor = Monitor(sys.argv[1])
    for step in sys.argv[2:]:
        name = step.removeprefix("event=")
        result = monitor.execute(json.loads(step)) if name == step else monitor.wait(name)
        print(json.dumps(result), flush=True)


main()

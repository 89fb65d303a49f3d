#!/usr/bin/env python3
"""nbd_tls.py - clients and servers of NBD that do what no well-behaved one does with STARTTLS.

  handshake PORT VERSION   a client of one version of TLS (tls1_1, tls1_2, tls1_3) gets the list of exports
  inject PORT              a client sends an option behind STARTTLS, before the answer: the server must end the connection
  key PORT USER KEY        a client of TLS 1.2 with a key gets the list of exports (openssl s_client behind a relay)
  keys PORT                a client changes its keys, and has the server change its own, several times (openssl s_client behind a relay)
  garbage PORT             a client agrees to TLS and sends something else: the server must end the connection
  trick SOCKET KIND        a server that offers no TLS, or lies; prints whether the client said anything but STARTTLS in plain text:
                           unsup and policy refuse it, ack-and-more agrees and appends plain text, plain agrees and continues in plain text
"""
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading

GREETING = b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3)
OPTION = b"IHAVEOPT"
REPLY_MAGIC = 0x0003E889045565A9
ABORT, LIST, STARTTLS = 2, 3, 5
ACK, SERVER = 1, 2
UNSUP, POLICY = (1 << 31) + 1, (1 << 31) + 2


def option(number, data=b""):
    return OPTION + struct.pack(">II", number, len(data)) + data


def reply(number, kind, data=b""):
    return struct.pack(">QIII", REPLY_MAGIC, number, kind, len(data)) + data


def take(stream, count):
    got = b""
    while len(got) < count:
        more = stream.recv(count - len(got))
        if not more:
            raise EOFError
        got += more
    return got


def answer(stream):
    _, number, kind, length = struct.unpack(">QIII", take(stream, 20))
    return number, kind, take(stream, length)


def greeted(port):
    stream = socket.create_connection(("localhost", port), timeout=20)
    assert take(stream, 18) == GREETING
    stream.sendall(struct.pack(">I", 3))
    return stream


def ended(stream):
    """Whether the server ends the connection without a further answer in plain text."""
    try:
        rest = b""
        while more := stream.recv(4096):
            rest += more
    except ConnectionError:
        pass
    # An alert of TLS may come.
    return REPLY_MAGIC.to_bytes(8, "big") not in rest


def handshake(port, version):
    stream = greeted(port)
    stream.sendall(option(STARTTLS))
    assert answer(stream) == (STARTTLS, ACK, b"")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    wanted = {"tls1_1": ssl.TLSVersion.TLSv1_1, "tls1_2": ssl.TLSVersion.TLSv1_2, "tls1_3": ssl.TLSVersion.TLSv1_3}[version]
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = wanted
    secured = context.wrap_socket(stream)
    secured.sendall(option(STARTTLS) + option(LIST))
    number, kind, _ = answer(secured)
    assert number == STARTTLS and kind >> 31 == 1, "a second STARTTLS is refused"
    number, kind, data = answer(secured)
    assert (number, kind) == (LIST, SERVER) and b"a.img" in data
    print(secured.version(), secured.cipher())


def relay(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Client:
    """openssl s_client, behind a relay that has agreed to TLS."""

    def __init__(self, port, *options):
        stream = greeted(port)
        stream.sendall(option(STARTTLS))
        assert answer(stream) == (STARTTLS, ACK, b"")
        stream.settimeout(None)
        listener = socket.create_server(("127.0.0.1", 0))
        place = "127.0.0.1:%d" % listener.getsockname()[1]
        self.program = subprocess.Popen(
            ["openssl", "s_client", "-connect", place, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        theirs, _ = listener.accept()
        for ends in ((stream, theirs), (theirs, stream)):
            threading.Thread(target=relay, args=ends, daemon=True).start()
        self.said = b""

    def until(self, text, times):
        while self.said.count(text) < times:
            more = os.read(self.program.stdout.fileno(), 65536)
            assert more, self.said
            self.said += more

    def send(self, data):
        self.program.stdin.write(data)


def key(port, user, key):
    client = Client(port, "-tls1_2", "-psk_identity", user, "-psk", key, "-cipher", "PSK")
    client.until(b"Verify return code", 1)
    client.send(option(LIST))
    client.until(b"a.img", 1)
    print(client.said.decode(errors="replace"))
    assert b"TLSv1.2" in client.said and b"ECDHE-PSK" in client.said
    client.program.kill()


def keys(port):
    client = Client(port, "-tls1_3")
    client.until(b"---", 1)
    for times in range(1, 4):
        # Our keys change, and the server is asked to change its own.
        client.send(b"K\n")
        client.until(b"KEYUPDATE", times)
        client.send(option(LIST))
        client.until(b"a.img", times)
    client.program.kill()


def inject(port):
    stream = greeted(port)
    stream.sendall(option(STARTTLS) + option(LIST))
    assert answer(stream) == (STARTTLS, ACK, b"")
    assert ended(stream), "the server answers what came in plain text"


def garbage(port):
    stream = greeted(port)
    stream.sendall(option(STARTTLS))
    assert answer(stream) == (STARTTLS, ACK, b"")
    stream.sendall(option(LIST) * 100)
    assert ended(stream), "the server continues in plain text"


def trick(path, kind):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    stream, _ = listener.accept()
    stream.settimeout(20)
    stream.sendall(GREETING)
    take(stream, 4)
    assert take(stream, 16) == option(STARTTLS), "the client begins with something else"
    answers = {
        "unsup": reply(STARTTLS, UNSUP), "policy": reply(STARTTLS, POLICY),
        "ack-and-more": reply(STARTTLS, ACK) + reply(LIST, ACK), "plain": reply(STARTTLS, ACK)
    }
    stream.sendall(answers[kind])
    said = b""
    try:
        if kind == "plain":
            # The first bytes are a record of TLS; what follows an answer in plain text must be none.
            said += take(stream, 5)
            stream.sendall(GREETING * 4)
        while more := stream.recv(4096):
            said += more
    except (ConnectionError, EOFError):
        pass
    is_plain = OPTION in said
    print("something in plain text" if is_plain else "nothing in plain text", flush=True)
    os.unlink(path)


def main():
    what, *arguments = sys.argv[1:]
    if what == "handshake":
        handshake(int(arguments[0]), arguments[1])
    elif what == "inject":
        inject(int(arguments[0]))
    elif what == "key":
        key(int(arguments[0]), *arguments[1:])
    elif what == "keys":
        keys(int(arguments[0]))
    elif what == "garbage":
        garbage(int(arguments[0]))
    elif what == "trick":
        trick(*arguments)
    else:
        sys.exit(__doc__)


main()

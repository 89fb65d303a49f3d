#!/usr/bin/python3
"""stamps.py - tests/interop/crash.py on a file of a file system whose disk goes away.

usage: stamps.py write|verify --seed NAME --state FILE --log FILE FILE

The file must be there in its full size. A file system that lost its disk answers with any of a few errors, and it
is for the caller to know whether it should have lost it.
"""

import errno
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "interop"))

import crash  # noqa: E402
from stamp import FileDevice  # noqa: E402

LOST = {errno.EIO, errno.EROFS, errno.ESHUTDOWN, errno.ENOTCONN, errno.EUCLEAN}


class File(FileDevice):
    def write(self, offset, data):
        while data:  # the disk may go away in the middle of a write: the next one has the error
            done = os.pwrite(self.fd, data, offset)
            offset, data = offset + done, data[done:]

    def gone(self):
        error = sys.exc_info()[1]
        return isinstance(error, OSError) and error.errno in LOST


crash.open_device = File
crash.main()

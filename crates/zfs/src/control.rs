//! Messages of any length, with an optional descriptor, over the control channel.
//!
//! A message is sent as packets of at most [`PACKET_BYTES`]; the first begins with the message's
//! length (8 bytes, native order) and carries the descriptor. Calls block: each end uses a
//! dedicated thread.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum length of a packet: well below the size of a socket buffer.
const PACKET_BYTES: usize = 32 << 10;
/// Maximum accepted message length: properties of some hundred thousand datasets.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// Bytes of a message's length.
const LENGTH_BYTES: usize = size_of::<u64>();

/// A pair of connected sockets that keep the limits of packets.
///
/// # Errors
/// Those of socketpair(2).
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// The descriptor sent with it.
    pub descriptor: Option<OwnedFd>,
}

/// Sends a message.
///
/// # Errors
/// Those of sendmsg(2); `BrokenPipe` if the other end is closed.
pub fn send(
    socket: impl AsFd,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let length = (message.len() as u64).to_ne_bytes();
    let (first, mut rest) = message.split_at(message.len().min(PACKET_BYTES - LENGTH_BYTES));
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    send_packet(socket.as_fd(), &[IoSlice::new(&length), IoSlice::new(first)], &mut ancillary)?;
    while !rest.is_empty() {
        let (packet, more) = rest.split_at(rest.len().min(PACKET_BYTES));
        send_packet(socket.as_fd(), &[IoSlice::new(packet)], &mut SendAncillaryBuffer::default())?;
        rest = more;
    }
    Ok(())
}

fn send_packet(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    ancillary: &mut SendAncillaryBuffer<'_, '_, '_>,
) -> io::Result<()> {
    loop {
        match sendmsg(socket, parts, ancillary, SendFlags::NOSIGNAL) {
            // A packet is sent as a whole or not at all.
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits for a message; `None` if the other end is closed.
///
/// # Errors
/// Those of recvmsg(2); `InvalidData` for malformed messages.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let mut packet = vec![0; PACKET_BYTES];
    let (len, descriptor) = receive_packet(socket.as_fd(), &mut packet)?;
    if len == 0 {
        return Ok(None);
    }
    let Some((length, first)) = packet.get(..len).and_then(|packet| packet.split_first_chunk())
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let length = usize::try_from(u64::from_ne_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = first.to_vec();
    while bytes.len() < length {
        let (len, _) = receive_packet(socket.as_fd(), &mut packet)?;
        if len == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&packet[..len]);
    }
    if bytes.len() > length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some(Message { bytes, descriptor }))
}

fn receive_packet(
    socket: BorrowedFd<'_>,
    packet: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            socket,
            &mut [IoSliceMut::new(packet)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        match received {
            Ok(received) => {
                let mut descriptor = None;
                for message in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        descriptor = descriptors.last();
                    }
                }
                return Ok((received.bytes, descriptor));
            }
            // The other process exited with unread messages.
            Err(Errno::CONNRESET) => return Ok((0, None)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order() {
        let (ours, theirs) = pair().unwrap();
        let lengths = [
            0,
            1,
            PACKET_BYTES - LENGTH_BYTES,
            PACKET_BYTES,
            3 * PACKET_BYTES - LENGTH_BYTES,
            1 << 20,
        ];
        let sender = std::thread::spawn(move || {
            for length in lengths {
                let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
                send(&ours, &bytes, None).unwrap();
            }
        });
        for length in lengths {
            let message = receive(&theirs).unwrap().unwrap();
            assert_eq!(message.bytes.len(), length);
            assert!(message.bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
            assert!(message.descriptor.is_none());
        }
        sender.join().unwrap();
        assert!(receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (ours, theirs) = pair().unwrap();
        let (inner, sent) = pair().unwrap();
        send(&ours, b"with", Some(sent.as_fd())).unwrap();
        drop(sent);
        let message = receive(&theirs).unwrap().unwrap();
        send(&inner, b"through it", None).unwrap();
        let through = receive(message.descriptor.unwrap()).unwrap().unwrap();
        assert_eq!(through.bytes, b"through it");
    }

    #[test]
    fn what_is_no_message_is_told() {
        let (ours, theirs) = pair().unwrap();
        rustix::net::send(&ours, b"short", SendFlags::empty()).unwrap();
        assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        rustix::net::send(&ours, &u64::MAX.to_ne_bytes(), SendFlags::empty()).unwrap();
        assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        rustix::net::send(&ours, b"\x01\0\0\0\0\0\0\0toomuch", SendFlags::empty()).unwrap();
        assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

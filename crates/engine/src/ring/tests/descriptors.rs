//! Many descriptors at a time, and numbers of closed descriptors that another file gets.

use super::*;

/// What epoll knows of a descriptor must end with its operations: its file may live on elsewhere.
#[test]
fn a_number_is_used_again() {
    on_both(|rig| {
        let (mut four, mut kept) = ([0; 4], Vec::new());
        let (mut one, mut peer) = pair();
        let number = one.as_raw_fd();
        for ends in ["completed", "cancelled", "received"] {
            kept.push(one.try_clone().unwrap());
            match ends {
                "received" => rig.recv(1, &one, &mut four),
                _ => rig.poll(1, &one, IN),
            }
            assert!(!rig.look(Some(1)));
            if ends == "cancelled" {
                rig.cancel(1);
                assert_eq!(rig.wait(1), -libc::ECANCELED);
            } else {
                write(&peer, b"a");
                assert!(rig.wait(1) > 0);
            }
            let (new, new_peer) = pair();
            // Another file with the same number.
            rustix::io::dup2(&new, &mut one).unwrap();
            assert_eq!(one.as_raw_fd(), number);
            rig.poll(2, &one, IN);
            assert!(!rig.look(Some(2)));
            write(&peer, b"b");
            assert!(!rig.look(Some(2)), "{ends}: woken by the old file");
            write(&new_peer, b"c");
            assert_eq!(rig.wait(2), IN);
            drain(&one);
            kept.push(peer);
            peer = new_peer;
        }
    });
}

/// More descriptors than one look at epoll tells of, all ready at a time, again and again: none is left out.
#[test]
fn many_descriptors_are_ready() {
    const COUNT: u64 = 300;
    on_both(|rig| {
        let pairs: Vec<_> = (0..COUNT).map(|_| pair()).collect();
        let mut bytes = vec![[0; 4]; COUNT as usize];
        for _ in 0..3 {
            for (number, (one, _)) in pairs.iter().enumerate() {
                rig.recv(number as u64, one, &mut bytes[number]);
            }
            rig.enter(None);
            for (_, other) in &pairs {
                write(other, b"ab");
            }
            for number in (0..COUNT).rev() {
                assert_eq!(rig.wait(number), 2);
            }
        }
    });
}

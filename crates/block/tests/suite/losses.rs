//! Disks that lose their cache: each opener's next flush fails, once.

use std::pin::pin;

use ashlar_block::{
    Bio, BioResult, BlockDevice, Buffer, ByteVolume, Disk, Features, Flags, Gateway, IoFuture,
    Limits, Op, Runtime, Sector, Sectors, Status,
};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use futures_util::FutureExt;
use futures_util::future::join;

const LOST: BioResult = Err(Status::Io);

fn write() -> Bio {
    Bio::write_from(Sector(8), &mut Buffer::from_slice(&[7; 4096]))
}

/// Runs with a disk that has a cache, and FUA or not.
fn on_a_disk(fua: bool, work: impl AsyncFn(&Media, Gateway)) {
    let media = Media::new(Sectors(800));
    let model = Model::nvme();
    let mut limits = model.limits();
    limits.features.set(Features::FUA, fua);
    let disk = SimDisk::with("disk", media.clone(), limits, model).gateway();
    Sim::new(1).block_on(work(&media, disk));
}

/// Loses the cache of the disk in one of four ways.
async fn lose(media: &Media, gateway: &Gateway, way: usize) {
    let lost = match way {
        0 => {
            media.fail_nth_flush(0);
            gateway.flush().await
        }
        1 => {
            media.fail_nth_fua(0);
            gateway.submit(write().with_flags(Flags::FUA)).await
        }
        2 => {
            media.fail_nth_flush(0);
            gateway.submit(write().with_flags(Flags::PREFLUSH)).await
        }
        _ => {
            media.vanish();
            let failed = gateway.submit(write()).await;
            media.heal();
            failed
        }
    };
    assert!(lost.is_err(), "way {way}");
}

#[test]
fn every_opener_is_told_once_of_each_loss() {
    for way in 0..4 {
        on_a_disk(true, async |media, one| {
            let (two, three) = (one.clone(), one.clone());
            one.submit(write()).await.unwrap();
            lose(media, &one, way).await;
            assert_eq!(media.peek(Sector(8)), [0; 512], "way {way}: not lost");
            for opener in [&two, &three] {
                assert_eq!(opener.flush().await, LOST, "way {way}");
                assert_eq!(opener.flush().await, Ok(()), "way {way}");
            }
            // The loser was told by a failed flush, and by nothing else.
            let told = if way == 0 || way == 2 { Ok(()) } else { LOST };
            assert_eq!(one.flush().await, told, "way {way}");
            assert_eq!(one.flush().await, Ok(()), "way {way}");
        });
    }
}

/// Without FUA the gateway writes and flushes: only the flush can lose the cache.
#[test]
fn an_emulated_durable_write_loses_nothing_unless_its_flush_fails() {
    on_a_disk(false, async |media, one| {
        let other = one.clone();
        media.fail_nth_write(0);
        assert_eq!(one.submit(write().with_flags(Flags::FUA)).await, LOST);
        assert_eq!(other.flush().await, Ok(()));
        media.fail_nth_flush(0);
        assert_eq!(one.submit(write().with_flags(Flags::FUA)).await, LOST);
        assert_eq!(other.flush().await, LOST);
    });
}

/// The write answers for itself alone. Whoever wrote before, through the same opener, asks with a flush.
#[test]
fn an_emulated_durable_write_does_not_hide_a_loss_from_the_next_flush() {
    for zeroes in [false, true] {
        on_a_disk(false, async |media, other| {
            let volume = ByteVolume::new(other.clone());
            let data = || Buffer::from_slice(&[7; 4096]).into_whole();
            let durable = async || match zeroes {
                false => volume.write(0, [data()], Flags::FUA).await,
                true => volume.write_zeroes(0, 4096, Flags::FUA).await,
            };
            for during in [true, false] {
                volume.write(8192, [data()], Flags::empty()).await.unwrap();
                if during {
                    media.fail_nth_flush(0);
                    assert_eq!(durable().await, LOST, "zeroes: {zeroes}");
                } else {
                    lose(media, &other, 0).await;
                    assert_eq!(durable().await, Ok(()), "zeroes: {zeroes}");
                }
                assert_eq!(media.peek(Sector(16)), [0; 512], "not lost");
                assert_eq!(volume.flush().await, LOST, "zeroes: {zeroes}, during: {during}");
                assert_eq!(volume.flush().await, Ok(()));
            }
        });
    }
}

/// The client's connection broke, for example: its future was dropped, but the command continues.
#[test]
fn a_loss_in_a_flush_that_its_submitter_dropped_is_told_to_the_next() {
    on_a_disk(true, async |media, one| {
        one.submit(write()).await.unwrap();
        media.fail_nth_flush(0);
        assert_eq!(pin!(one.flush()).as_mut().now_or_never(), None);
        SimRuntime.sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(one.flush().await, LOST);
        assert_eq!(one.flush().await, Ok(()));
    });
}

#[test]
fn flushes_that_overlap_a_loss_all_fail() {
    for openers in 1..=2 {
        on_a_disk(true, async |media, one| {
            let other = if openers == 1 { None } else { Some(one.clone()) };
            let other = other.as_ref().unwrap_or(&one);
            one.submit(write()).await.unwrap();
            for failing in 0..2 {
                media.fail_nth_flush(failing);
                assert_eq!(join(one.flush(), other.flush()).await, (LOST, LOST));
                assert_eq!(join(one.flush(), other.flush()).await, (Ok(()), Ok(())));
            }
        });
    }
}

#[test]
fn an_opener_without_unflushed_writes_need_not_be_told() {
    on_a_disk(true, async |media, one| {
        let other = one.clone();
        lose(media, &one, 0).await;
        other.acknowledge_losses();
        assert_eq!(other.flush().await, Ok(()));
        lose(media, &one, 0).await;
        assert_eq!(other.flush().await, LOST);
    });
}

/// A layer that passes everything on.
struct Layer(Disk, Gateway);

impl BlockDevice for Layer {
    fn disk(&self) -> &Disk {
        &self.0
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.1.submit(bio)
    }
}

#[test]
fn layers_pass_losses_on_to_their_own_openers() {
    on_a_disk(true, async |media, disk| {
        let limits =
            Limits { features: Features::WRITE_CACHE | Features::FUA, ..Limits::default() };
        let layer = || {
            let layer = Layer(Disk::new("layer", Sectors(800), limits), disk.clone());
            Gateway::new(std::sync::Arc::new(layer))
        };
        let (first, second) = (layer(), layer());
        let (one, two) = (first.clone(), first.clone());
        one.submit(write()).await.unwrap();
        // Another layer over the same disk.
        lose(media, &second, 0).await;
        assert_eq!(one.flush().await, LOST);
        assert_eq!((one.flush().await, two.flush().await), (Ok(()), LOST));
        assert_eq!((two.flush().await, second.flush().await), (Ok(()), Ok(())));
        media.drop_support(Op::Flush);
        assert_eq!(one.flush().await, Err(Status::NotSupported));
        media.heal();
        assert_eq!((one.flush().await, two.flush().await), (Ok(()), Ok(())));
    });
}

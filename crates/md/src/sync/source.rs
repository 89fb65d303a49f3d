//! A sync's reads from the copies that [`crate::copies`] chooses, and its handling of unreadable blocks.

use ashlar_block::{Bio, Sectors, Segment, Status, rate_limited};
use smallvec::SmallVec;

use crate::array::Array;
use crate::copies::{Source, first_copy};
use crate::rdev::State;

/// Unit of retries after a read error, where copies are the same: pages, as in md.
const PAGE: Sectors = Sectors(8);

/// Part of a run: its offset and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) into: Sectors,
    pub(super) len: Sectors,
}

impl Part {
    fn end(self) -> Sectors {
        self.into + self.len
    }
}

/// The result of reading a run, each block from the first readable copy.
#[derive(Default)]
pub(super) struct Fetched {
    /// If one source returned everything, its index among the sources.
    pub(super) only: Option<usize>,
    /// Parts that one source (by index) could not return and another did.
    pub(super) bad: Vec<(usize, Part)>,
    /// Parts that no source could return, ascending; and why, if a member was read.
    pub(super) lost: Vec<(Part, Option<Status>)>,
}

impl Fetched {
    /// The parts that were read, of a run of `len` sectors.
    pub(super) fn good(&self, len: Sectors) -> SmallVec<[Part; 2]> {
        let mut good = SmallVec::new();
        let mut from = Sectors::ZERO;
        for lost in self.lost.iter().map(|(lost, _)| *lost).chain([Part { into: len, len }]) {
            if lost.into > from {
                good.push(Part { into: from, len: lost.into - from });
            }
            from = lost.end();
        }
        good
    }
}

impl Array {
    /// The smallest read after a read error.
    pub(super) fn smallest_read(&self) -> Sectors {
        let block = self.disk.limits().logical_block();
        // Where copies may differ, the source is chosen for each block separately.
        if self.is_unsynced() { block } else { Sectors(block.0.max(PAGE.0)) }
    }

    /// Reads a run of sectors into `data`, each block from the first source that can return it.
    pub(super) async fn fetch(&self, sources: &[Source<'_>], data: &Segment) -> Fetched {
        let block = self.disk.limits().logical_block();
        let len = Sectors::from_bytes_floor(data.len() as u64);
        let mut fetched = Fetched::default();
        let mut used: SmallVec<[usize; 4]> = SmallVec::new();
        // Sources with a device error, which are not tried again for each block.
        let mut gone: SmallVec<[(usize, Status); 4]> = SmallVec::new();
        let mut todo = vec![Part { into: Sectors::ZERO, len }];
        while let Some(part) = todo.pop() {
            let able: SmallVec<[(usize, Source<'_>); 4]> = sources
                .iter()
                .copied()
                .enumerate()
                .filter(|(place, _)| gone.iter().all(|(other, _)| other != place))
                .collect();
            let asked: SmallVec<[Source<'_>; 4]> = able.iter().map(|(_, source)| *source).collect();
            let (first, run) = first_copy(&asked, part.into, part.len, block);
            if run < part.len {
                todo.push(Part { into: part.into + run, len: part.len - run });
            }
            let part = Part { len: run, ..part };
            let Some((place, source)) = first.map(|first| able[first]) else {
                fetched.lost.push((part, gone.last().map(|(_, status)| *status)));
                continue;
            };
            match self.read_part(source, part, data).await {
                Ok(()) => used.push(place),
                Err(status) if !status.is_of_medium() => {
                    gone.push((place, status));
                    todo.push(part);
                }
                Err(_) if run > self.smallest_read() => {
                    let half = Sectors(run.0 / 2).round_up(self.smallest_read());
                    todo.push(Part { into: part.into + half, len: run - half });
                    todo.push(Part { into: part.into, len: half });
                }
                Err(status) => {
                    source.rdev.count_read_error();
                    let others = able.iter().filter(|(other, _)| *other != place);
                    let others: SmallVec<[_; 4]> = others.copied().collect();
                    match self.read_elsewhere(&others, part, data).await {
                        Ok(other) => {
                            fetched.bad.push((place, part));
                            used.push(other);
                        }
                        Err(other) => {
                            let gone = gone.iter().map(|(_, status)| *status);
                            let all = [status].into_iter().chain(other).chain(gone);
                            fetched.lost.push((part, all.reduce(less_certain)));
                        }
                    }
                }
            }
        }
        let first = used.first().copied();
        fetched.only = first.filter(|first| used.iter().all(|place| place == first));
        fetched
    }

    /// Reads a block that its first source could not return. Returns the index of the source that
    /// could, or why none could.
    async fn read_elsewhere(
        &self,
        others: &[(usize, Source<'_>)],
        part: Part,
        data: &Segment,
    ) -> Result<usize, Option<Status>> {
        let mut error = None;
        for (place, source) in others {
            if !source.rdev.can_read(source.at + part.into, part.len) {
                continue;
            }
            match self.read_part(*source, part, data).await {
                Ok(()) => return Ok(*place),
                Err(status) => error = error.into_iter().chain([status]).reduce(less_certain),
            }
        }
        Err(error)
    }

    async fn read_part(
        &self,
        source: Source<'_>,
        part: Part,
        data: &Segment,
    ) -> Result<(), Status> {
        let result =
            source.rdev.submit(Bio::read(source.at + part.into, [slice(data, part)])).await;
        if let Err(status) = result {
            let (member, sector) = (source.rdev.path(), source.at + part.into);
            rate_limited!(warn, array = self.disk.name(), member, %sector, %status, "read error of a sync");
        }
        result.and(self.is_current(source.index, source.rdev).await)
    }

    /// Writes part of a run to one copy. A member that does not take it fails.
    ///
    /// # Errors
    /// The member lacks the data but must stay.
    pub(super) async fn put(
        &self,
        target: Source<'_>,
        part: Part,
        data: &Segment,
    ) -> Result<(), Status> {
        let Source { rdev, at, .. } = target;
        let at = at + part.into;
        let result = rdev.submit(Bio::write(at, [slice(data, part)])).await;
        match result {
            Ok(()) => {
                let on_device = at + rdev.data_offset();
                if let Err(error) = rdev.bad_blocks().clear(on_device, part.len) {
                    let member = rdev.path();
                    rate_limited!(warn, array = self.disk.name(), member, %error, "bad blocks stay listed");
                }
                Ok(())
            }
            Err(status) if rdev.is_faulty() || self.fail_member(rdev, status).await? => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Reads data back that was written over a read error. A member that cannot return it fails, unless
    /// it must stay.
    pub(super) async fn verify(&self, source: Source<'_>, part: Part) -> Result<(), Status> {
        let mut check = ashlar_block::Buffer::alloc(part.len.bytes() as usize);
        let at = source.at + part.into;
        match source.rdev.submit(Bio::read_into(at, &mut check)).await {
            Ok(()) => {
                source.rdev.count_corrected(part.len);
                let member = source.rdev.path();
                rate_limited!(warn, array = self.disk.name(), member, sector = %at, "read error corrected");
                Ok(())
            }
            Err(status) => self.fail_member(source.rdev, status).await.map(|_| ()),
        }
    }

    /// Lists a part of a copy as bad, if its member has a log. It is acknowledged with the next
    /// superblocks.
    pub(super) fn note_bad(&self, target: Source<'_>, part: Part) -> bool {
        let at = target.at + part.into + target.rdev.data_offset();
        let noted = target.rdev.bad_blocks().set(at, part.len).is_ok();
        if noted {
            self.must_record();
        }
        noted && !target.rdev.state().contains(State::FAULTY)
    }
}

/// Of two errors, the one after which the data may still exist.
fn less_certain(one: Status, other: Status) -> Status {
    if one == Status::Medium { other } else { one }
}

/// The bytes of a part of a run.
pub(super) fn slice(data: &Segment, part: Part) -> Segment {
    let from = part.into.bytes() as usize;
    data.slice(from..from + part.len.bytes() as usize)
}

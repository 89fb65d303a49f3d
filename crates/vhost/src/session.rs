//! A connection: the front end's requests, and the queues that they start and stop.
//!
//! A queue has stopped, or waits for one of: addresses, a descriptor for its driver's events, being enabled; or runs, as a task on a
//! reactor ([`vring`]). GET_VRING_BASE stops it: all that it has taken has ended when the answer is sent. What the front end
//! changes while a queue runs (memory, the descriptor that signals its driver) is passed to the task; for all else the queue is stopped.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ashlar_block::byte_volume::OpenVolume;
use ashlar_engine::fd::Fd;
use ashlar_engine::net::{Socket, send_with_files};
use ashlar_engine::oneshot::{self, Sender};
use ashlar_engine::{Handle, ReceiveError, Receiver, timeout};
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use vhost::vhost_user::message::{
    FrontendReq, VhostUserConfig, VhostUserInflight, VhostUserVringAddr, VhostUserVringState,
};
use vm_memory::ByteValued;

use crate::blk;
use crate::config::Config;
use crate::event::is_event;
use crate::export::Export;
use crate::fault::MAX_DESCRIPTORS;
use crate::features::{OFFERED, PROTOCOL_FEATURES, check_protocol, check_virtio};
use crate::inflight::{Inflight, new_region, region_bytes};
use crate::memory::{GuestMap, MAX_REGIONS, Unsealed};
use crate::request::Terms;
use crate::violation::Violation;
use crate::vring::{self, Addresses, Changes, Ended, Setup};
use crate::wire::{self, Message};

/// How long a front end may leave a message of the device unread.
const PATIENCE: Duration = Duration::from_secs(1);
/// The descriptor is missing: the front end polls instead (bits 0 to 7 are the queue).
const NO_FD: u64 = 1 << 8;
/// The padding of [`VhostUserInflight`] may be left out.
const INFLIGHT_BYTES: usize = 20;

/// What a request leads to.
enum Reply {
    /// Nothing but the answer that it was done, if one is wanted.
    Done,
    /// It was not done, which is no reason to end.
    Refused,
    Body(Vec<u8>),
    BodyAndFile(Vec<u8>, OwnedFd),
}

fn number(value: u64) -> Reply {
    Reply::Body(value.to_ne_bytes().to_vec())
}

struct Running {
    changes: Arc<Changes>,
    /// Dropping it stops the queue.
    _stop: Sender<()>,
    ended: Receiver<Ended>,
}

/// A queue as its front end has set it up.
#[derive(Default)]
struct Vring {
    size: u16,
    base: u16,
    addresses: Option<Addresses>,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    is_enabled: bool,
    running: Option<Running>,
}

/// See the module text.
pub(crate) struct Session<'a> {
    export: &'a Export,
    config: &'a Config,
    threads: &'a [Handle],
    /// The thread of the first queue.
    first_thread: usize,
    /// Who is at the other end.
    client: i32,
    volume: Arc<OpenVolume>,
    offered: u64,
    features: u64,
    protocol: Protocol,
    map: Arc<GuestMap>,
    inflight: Option<Arc<Inflight>>,
    vrings: Vec<Vring>,
    backend: Option<Socket>,
    has_warned: bool,
}

/// What a session waits for.
enum Event {
    Message(Box<Result<Option<Message>, Violation>>),
    Ended(u16, Result<Ended, ReceiveError>),
    Changed,
    Stopped,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        export: &'a Export,
        volume: OpenVolume,
        config: &'a Config,
        threads: &'a [Handle],
        first_thread: usize,
        client: i32,
    ) -> Self {
        let offered = blk::features(&volume, export.is_read_only()) | PROTOCOL_FEATURES;
        let vrings = (0..config.queues).map(|_| Vring::default()).collect();
        Self {
            export,
            config,
            threads,
            first_thread,
            client,
            volume: Arc::new(volume),
            offered,
            features: 0,
            protocol: Protocol::empty(),
            map: Arc::default(),
            inflight: None,
            vrings,
            backend: None,
            has_warned: false,
        }
    }

    /// Serves the front end until it or `stop` ends the connection, and all requests that were taken have ended.
    ///
    /// # Errors
    /// The front end or its guest broke the rules, or the connection failed.
    pub(crate) async fn run(
        &mut self,
        socket: &Socket,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Violation> {
        let result = self.serve(socket, stop).await;
        if let Err(Violation::Ring(index, _)) = &result {
            self.signal_error(*index).await;
        }
        for index in 0..self.config.queues {
            let (Ok(()) | Err(_)) = self.stop(index).await;
        }
        result
    }

    async fn serve(
        &mut self,
        socket: &Socket,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Violation> {
        let mut stop = pin!(stop);
        let mut changed = self.export.changed();
        loop {
            let mut receiving = pin!(wire::receive(socket));
            let message = loop {
                let event = poll_fn(|cx| {
                    if stop.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Event::Stopped);
                    }
                    for (index, vring) in (0..).zip(&mut self.vrings) {
                        let Some(running) = &mut vring.running else { continue };
                        if let Poll::Ready(ended) = Pin::new(&mut running.ended).poll(cx) {
                            vring.running = None;
                            return Poll::Ready(Event::Ended(index, ended));
                        }
                    }
                    if Pin::new(&mut changed).poll(cx).is_ready() {
                        return Poll::Ready(Event::Changed);
                    }
                    receiving.as_mut().poll(cx).map(|message| Event::Message(message.into()))
                });
                match event.await {
                    Event::Stopped => return Ok(()),
                    // Nothing else ends a queue that was not stopped.
                    Event::Ended(index, Ok(Ended { fault, .. })) => {
                        let fault = fault.map(|fault| Violation::Ring(index, fault));
                        return Err(fault.unwrap_or(Violation::Lost(index)));
                    }
                    Event::Ended(index, Err(ReceiveError)) => return Err(Violation::Lost(index)),
                    Event::Changed => {
                        changed = self.export.changed();
                        self.tell_change().await;
                    }
                    Event::Message(message) => break *message,
                }
            };
            let Some(message) = message? else { return Ok(()) };
            self.execute(socket, message).await?;
        }
    }

    /// Handles a message, and answers it.
    async fn execute(&mut self, socket: &Socket, message: Message) -> Result<(), Violation> {
        let (request, needs_reply) = (message.request, message.needs_reply);
        let answers = needs_reply && self.protocol.contains(Protocol::REPLY_ACK);
        let result = self.handle(message).await;
        // SET_PROTOCOL_FEATURES may have been the message that turned answers on.
        let answers = answers || needs_reply && self.protocol.contains(Protocol::REPLY_ACK);
        let (bytes, file) = match &result {
            Ok(Reply::Body(body)) => (wire::reply(request, body), None),
            Ok(Reply::BodyAndFile(body, file)) => (wire::reply(request, body), Some(file)),
            Ok(Reply::Done) if answers => (wire::reply(request, &0u64.to_ne_bytes()), None),
            Ok(Reply::Refused) | Err(_) if answers && !wire::has_body(request) => {
                (wire::reply(request, &1u64.to_ne_bytes()), None)
            }
            Ok(Reply::Done | Reply::Refused) | Err(_) => return result.map(|_| ()),
        };
        match file {
            None => socket.send_all(bytes).await.0?,
            Some(file) => {
                // Room for a quarter of the socket's buffer: the call does not wait.
                let waiting = Fd::new(socket.as_fd().try_clone_to_owned()?);
                waiting.writable().await?;
                send_with_files(socket.as_fd(), &bytes, &[file.as_fd()])?;
            }
        }
        result.map(|_| ())
    }

    async fn handle(&mut self, message: Message) -> Result<Reply, Violation> {
        let request = message.request;
        match request {
            FrontendReq::GET_FEATURES => return Ok(number(self.offered)),
            FrontendReq::SET_FEATURES => self.set_features(message.number()?)?,
            FrontendReq::GET_PROTOCOL_FEATURES => return Ok(number(OFFERED.bits())),
            FrontendReq::SET_PROTOCOL_FEATURES => {
                let wanted = message.number()?;
                check_protocol(wanted & !OFFERED.bits())?;
                self.protocol = Protocol::from_bits_truncate(wanted);
            }
            FrontendReq::SET_OWNER => {}
            FrontendReq::RESET_OWNER => self.stop_all().await?,
            FrontendReq::RESET_DEVICE => {
                self.needs(request, Protocol::RESET_DEVICE, "RESET_DEVICE")?;
                self.stop_all().await?;
                self.features = 0;
                self.vrings = (0..self.config.queues).map(|_| Vring::default()).collect();
            }
            FrontendReq::GET_QUEUE_NUM => {
                self.needs(request, Protocol::MQ, "MQ")?;
                return Ok(number(self.config.queues.into()));
            }
            FrontendReq::SET_MEM_TABLE => self.set_table(message)?,
            FrontendReq::GET_MAX_MEM_SLOTS => {
                self.needs(request, Protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
                return Ok(number(MAX_REGIONS as u64));
            }
            FrontendReq::ADD_MEM_REG => {
                self.needs(request, Protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
                let region = message.region()?;
                let added = self.map.with(region, message.file()?, self.config.unsealed);
                let (map, is_sealed) = added.map_err(|bad| Violation::Memory(request, bad))?;
                self.warn_unsealed(is_sealed);
                self.set_map(map);
            }
            FrontendReq::REM_MEM_REG => {
                self.needs(request, Protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
                let rest = self.map.without(message.region()?);
                self.set_map(rest.map_err(|bad| Violation::Memory(request, bad))?);
            }
            FrontendReq::GET_CONFIG => return self.get_config(&message),
            // The space has nothing that a driver may write: CONFIG_WCE is not offered.
            FrontendReq::SET_CONFIG => return Ok(Reply::Refused),
            FrontendReq::SET_VRING_NUM => self.set_size(&message)?,
            FrontendReq::SET_VRING_BASE => self.set_base(&message)?,
            FrontendReq::GET_VRING_BASE => return self.get_base(&message).await,
            FrontendReq::SET_VRING_ENABLE => self.enable(&message).await?,
            FrontendReq::SET_VRING_ADDR => self.set_addresses(&message)?,
            FrontendReq::SET_VRING_KICK => self.set_kick(message).await?,
            FrontendReq::SET_VRING_CALL => self.set_call(message)?,
            FrontendReq::SET_VRING_ERR => {
                let (index, file) = event(message)?;
                self.vring(index)?.1.error = file;
            }
            FrontendReq::SET_BACKEND_REQ_FD => {
                self.needs(request, Protocol::BACKEND_REQ, "BACKEND_REQ")?;
                self.backend = Some(Socket::from_fd(message.file()?));
            }
            FrontendReq::GET_INFLIGHT_FD => {
                self.needs(request, Protocol::INFLIGHT_SHMFD, "INFLIGHT_SHMFD")?;
                let mut inflight = self.inflight_body(&message)?;
                let (queues, size) = (inflight.num_queues, inflight.queue_size);
                let file = new_region(queues, size).map_err(io::Error::from)?;
                inflight.mmap_size = region_bytes(queues, size) as u64;
                inflight.mmap_offset = 0;
                return Ok(Reply::BodyAndFile(inflight.as_slice().to_vec(), file));
            }
            FrontendReq::SET_INFLIGHT_FD => {
                self.needs(request, Protocol::INFLIGHT_SHMFD, "INFLIGHT_SHMFD")?;
                self.set_inflight(message)?;
            }
            FrontendReq::SET_LOG_BASE
            | FrontendReq::SET_LOG_FD
            | FrontendReq::SEND_RARP
            | FrontendReq::NET_SET_MTU
            | FrontendReq::IOTLB_MSG
            | FrontendReq::SET_VRING_ENDIAN
            | FrontendReq::CREATE_CRYPTO_SESSION
            | FrontendReq::CLOSE_CRYPTO_SESSION
            | FrontendReq::POSTCOPY_ADVISE
            | FrontendReq::POSTCOPY_LISTEN
            | FrontendReq::POSTCOPY_END
            | FrontendReq::GPU_SET_SOCKET
            | FrontendReq::VRING_KICK
            | FrontendReq::SET_STATUS
            | FrontendReq::GET_STATUS
            | FrontendReq::GET_SHARED_OBJECT
            | FrontendReq::SET_DEVICE_STATE_FD
            | FrontendReq::CHECK_DEVICE_STATE
            | FrontendReq::GET_SHMEM_CONFIG => return Err(Violation::NotOffered(request)),
        }
        Ok(Reply::Done)
    }

    fn needs(
        &self,
        request: FrontendReq,
        feature: Protocol,
        name: &'static str,
    ) -> Result<(), Violation> {
        if self.protocol.contains(feature) {
            return Ok(());
        }
        Err(Violation::NotNegotiated { request, feature: name })
    }

    fn set_features(&mut self, wanted: u64) -> Result<(), Violation> {
        check_virtio(wanted & !self.offered)?;
        self.features = wanted;
        Ok(())
    }

    fn get_config(&self, message: &Message) -> Result<Reply, Violation> {
        self.needs(message.request, Protocol::CONFIG, "CONFIG")?;
        let (head, rest): (VhostUserConfig, _) = message.body_and_rest()?;
        let size = head.size as usize;
        if rest.len() != size {
            return Err(Violation::Body(message.request));
        }
        let config = blk::config(&self.volume, self.config.queues);
        let known = config.get(head.offset as usize..).unwrap_or_default();
        let known = &known[..known.len().min(size)];
        let mut body = head.as_slice().to_vec();
        body.extend_from_slice(known);
        body.resize(size_of::<VhostUserConfig>() + size, 0);
        Ok(Reply::Body(body))
    }

    fn set_table(&mut self, message: Message) -> Result<(), Violation> {
        let request = message.request;
        let mut map = GuestMap::default();
        for (region, file) in message.table()? {
            let added = map.with(region, file, self.config.unsealed);
            let (next, is_sealed) = added.map_err(|bad| Violation::Memory(request, bad))?;
            self.warn_unsealed(is_sealed);
            map = next;
        }
        self.set_map(map);
        Ok(())
    }

    fn set_map(&mut self, map: GuestMap) {
        self.map = Arc::new(map);
        for running in self.vrings.iter().filter_map(|vring| vring.running.as_ref()) {
            running.changes.set_map(Arc::clone(&self.map));
        }
    }

    /// Says once that the front end could end this process.
    fn warn_unsealed(&mut self, is_sealed: bool) {
        if !is_sealed && !std::mem::replace(&mut self.has_warned, true) {
            let (volume, client) = (self.export.name(), self.client);
            tracing::info!(
                volume,
                client,
                "vhost-user memory is not sealed: its process could end this one by shortening it"
            );
        }
    }

    fn inflight_body(&self, message: &Message) -> Result<VhostUserInflight, Violation> {
        let body: VhostUserInflight = message.body_of(INFLIGHT_BYTES)?;
        let (queues, size) = (body.num_queues, body.queue_size);
        if queues > self.config.queues || size > MAX_DESCRIPTORS {
            return Err(Violation::Inflight { queues, size });
        }
        Ok(body)
    }

    fn set_inflight(&mut self, message: Message) -> Result<(), Violation> {
        let request = message.request;
        let body = self.inflight_body(&message)?;
        let file = message.file()?;
        let bad = |bad| Violation::Memory(request, bad);
        let (offset, bytes) = (body.mmap_offset, body.mmap_size);
        let mapped = Inflight::map(file, offset, bytes, body.num_queues, body.queue_size);
        let (inflight, is_sealed) = mapped.map_err(bad)?;
        if !is_sealed && self.config.unsealed == Unsealed::Refuse {
            return Err(bad(crate::memory::BadMemory::NotSealed));
        }
        self.inflight = Some(inflight);
        Ok(())
    }

    fn vring(&mut self, index: u32) -> Result<(u16, &mut Vring), Violation> {
        let vring = usize::try_from(index).ok().and_then(|at| self.vrings.get_mut(at));
        // There are less than 65536.
        vring.map(|vring| (index as u16, vring)).ok_or(Violation::NoQueue(index))
    }

    /// A queue that does not run, and the number that a message sets for it.
    fn idle_vring(&mut self, message: &Message) -> Result<(u16, &mut Vring, u32), Violation> {
        let VhostUserVringState { index, num } = message.body()?;
        let (index, vring) = self.vring(index)?;
        if vring.running.is_some() {
            return Err(Violation::Runs(message.request, index));
        }
        Ok((index, vring, num))
    }

    fn set_size(&mut self, message: &Message) -> Result<(), Violation> {
        let (index, vring, number) = self.idle_vring(message)?;
        let fits = |size: &u16| size.is_power_of_two() && *size <= MAX_DESCRIPTORS;
        let size = u16::try_from(number).ok().filter(fits);
        vring.size = size.ok_or(Violation::QueueSize(index, number))?;
        Ok(())
    }

    fn set_base(&mut self, message: &Message) -> Result<(), Violation> {
        let (index, vring, number) = self.idle_vring(message)?;
        vring.base = u16::try_from(number).map_err(|_| Violation::Base(index, number))?;
        Ok(())
    }

    async fn get_base(&mut self, message: &Message) -> Result<Reply, Violation> {
        let VhostUserVringState { index, .. } = message.body()?;
        let (number, _) = self.vring(index)?;
        self.stop(number).await?;
        let (_, vring) = self.vring(index)?;
        vring.kick = None;
        let state = VhostUserVringState::new(index, vring.base.into());
        Ok(Reply::Body(state.as_slice().to_vec()))
    }

    async fn enable(&mut self, message: &Message) -> Result<(), Violation> {
        let VhostUserVringState { index, num } = message.body()?;
        let (index, vring) = self.vring(index)?;
        vring.is_enabled = match num {
            0 => false,
            1 => true,
            _ => return Err(Violation::Body(message.request)),
        };
        if num == 0 { self.stop(index).await } else { self.start(index) }
    }

    fn set_addresses(&mut self, message: &Message) -> Result<(), Violation> {
        let body: VhostUserVringAddr = message.body()?;
        let addresses =
            Addresses { descriptors: body.descriptor, used: body.used, available: body.available };
        let flags = body.flags;
        let (index, vring) = self.vring(body.index)?;
        if flags != 0 {
            return Err(Violation::Log(index));
        }
        if vring.running.is_some() && vring.addresses != Some(addresses) {
            return Err(Violation::Runs(message.request, index));
        }
        vring.addresses = Some(addresses);
        self.start(index)
    }

    async fn set_kick(&mut self, message: Message) -> Result<(), Violation> {
        let (index, file) = event(message)?;
        let (number, _) = self.vring(index)?;
        let file = file.ok_or(Violation::NoKick(number))?;
        self.stop(number).await?;
        let has_protocol = self.features & PROTOCOL_FEATURES != 0;
        let (_, vring) = self.vring(index)?;
        vring.kick = Some(file);
        // Without the protocol's features there is no message that enables it.
        vring.is_enabled |= !has_protocol;
        self.start(number)
    }

    fn set_call(&mut self, message: Message) -> Result<(), Violation> {
        let (index, file) = event(message)?;
        let copy = file.as_ref().map(OwnedFd::try_clone).transpose()?;
        let (_, vring) = self.vring(index)?;
        vring.call = file;
        if let Some(running) = &vring.running {
            running.changes.set_call(copy);
        }
        Ok(())
    }

    /// Starts a queue that has all it needs.
    fn start(&mut self, index: u16) -> Result<(), Violation> {
        let thread = (self.first_thread + usize::from(index)) % self.threads.len();
        let has = |feature| self.features & feature != 0;
        let (has_indirect, has_event_idx) = (has(blk::INDIRECT), has(blk::EVENT_IDX));
        let terms = Terms {
            is_read_only: self.export.is_read_only(),
            is_write_through: !has(blk::FLUSH),
            id: self.export.id(),
        };
        let (map, inflight) = (Arc::clone(&self.map), self.inflight.clone());
        let (volume, spin) = (Arc::clone(&self.volume), self.config.spin);
        let (_, vring) = self.vring(index.into())?;
        let Vring { size, base, is_enabled, .. } = *vring;
        let (Some(kick), Some(addresses)) = (&vring.kick, vring.addresses) else { return Ok(()) };
        if !is_enabled || size == 0 || vring.running.is_some() {
            return Ok(());
        }
        let changes: Arc<Changes> = Arc::default();
        let setup = Setup {
            index,
            size,
            addresses,
            base,
            has_indirect,
            has_event_idx,
            map,
            inflight,
            kick: kick.try_clone()?,
            call: vring.call.as_ref().map(OwnedFd::try_clone).transpose()?,
            changes: Arc::clone(&changes),
            volume,
            terms: Arc::new(terms),
            spin,
        };
        let (stop, stopped) = oneshot::channel();
        let ended = self.threads[thread].spawn_on(move || vring::run(setup, stopped));
        let (_, vring) = self.vring(index.into())?;
        vring.running = Some(Running { changes, _stop: stop, ended });
        Ok(())
    }

    /// Stops a queue, if it runs. All requests that it has taken have ended then.
    async fn stop(&mut self, index: u16) -> Result<(), Violation> {
        let (_, vring) = self.vring(index.into())?;
        let Some(Running { _stop, ended, .. }) = vring.running.take() else { return Ok(()) };
        drop(_stop);
        let Ended { base, fault } = ended.await.map_err(|ReceiveError| Violation::Lost(index))?;
        vring.base = base;
        fault.map_or(Ok(()), |fault| Err(Violation::Ring(index, fault)))
    }

    async fn stop_all(&mut self) -> Result<(), Violation> {
        for index in 0..self.config.queues {
            self.stop(index).await?;
        }
        Ok(())
    }

    /// Tells the driver that its ring is broken.
    async fn signal_error(&mut self, index: u16) {
        let Ok((_, vring)) = self.vring(index.into()) else { return };
        let Some(error) = vring.error.take() else { return };
        let written = Fd::new(error).write(1u64.to_ne_bytes().to_vec(), None);
        if timeout(PATIENCE, written).await.is_none() {
            tracing::debug!(index, "a vhost-user driver does not take the error of its ring");
        }
    }

    /// Tells the front end that the configuration space has changed.
    async fn tell_change(&mut self) {
        let Some(backend) = &self.backend else { return };
        let sent = timeout(PATIENCE, backend.send_all(wire::config_changed())).await;
        let error = match sent {
            Some((Ok(()), _)) => return,
            Some((Err(error), _)) => error,
            None => io::ErrorKind::TimedOut.into(),
        };
        tracing::debug!(%error, volume = self.export.name(), "telling a front end of a change");
        self.backend = None;
    }
}

/// The queue and the event descriptor of a message.
fn event(message: Message) -> Result<(u32, Option<OwnedFd>), Violation> {
    let (request, number) = (message.request, message.number()?);
    let file = message.maybe_file()?;
    if (number & NO_FD == 0) != file.is_some() || number & !(NO_FD | 0xff) != 0 {
        return Err(Violation::Body(request));
    }
    if file.as_ref().is_some_and(|file| !is_event(file)) {
        return Err(Violation::NoEvent(request));
    }
    Ok(((number & 0xff) as u32, file))
}

//! One connection of rping: its QP, its buffers, and the steps of the exchange.

use std::fmt;
use std::io::{self, Write};

use ferroce::cm::{CmEvent, CmId, ConnParam};
use ferroce::{
    AccessFlags, CompletionQueue, MemoryPool, MemoryRegion, PageSize, ProtectionDomain, QpCap, QpInit, QpState, Qpn,
    QueuePair, RecvWr, SendWr, VerbsError, WcOpcode, WorkCompletion,
};

use super::Args;
use super::exchange::{Advert, BUFFER_BYTES, ClientStep, ServerStep, ping, text};
use crate::outcome::{CommandError, Outcome};
use crate::report::printable;

/// Sends of a QP; rping's own.
const SEND_WRS: u32 = 16;
const RECV_WRS: u32 = 2;
/// Completions of a QP that may wait.
pub(super) const CQE: u32 = SEND_WRS + RECV_WRS;

/// The page of control messages: what comes in, then what goes out.
const CONTROL_BYTES: u64 = 4096;
const RECV_OFFSET: u64 = 0;
const SEND_OFFSET: u64 = 64;
/// Where the client's ping begins, behind the buffer for what comes back.
const SOURCE_OFFSET: u64 = BUFFER_BYTES as u64;

/// Where the lines go.
pub(super) struct Reporter<'a, W> {
    pub(super) out: &'a mut W,
    pub(super) verbose: bool,
    pub(super) debug: bool,
}

impl<W: Write> Reporter<'_, W> {
    pub(super) fn debug(&mut self, line: fmt::Arguments<'_>) -> Result<(), CommandError> {
        if self.debug {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    fn ping(&mut self, what: &str, data: &[u8]) -> io::Result<()> {
        if self.verbose {
            writeln!(self.out, "{what}: {}", printable(&String::from_utf8_lossy(data)))?;
        }
        Ok(())
    }
}

/// How it stands after a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// More is to come.
    Goes,
    /// Every ping was made.
    Done,
    /// The peer does what rping does not, or data came back wrong; the reason was printed.
    Failed,
}

enum Side {
    Server { step: ServerStep, source: Advert },
    Client { step: ClientStep, done: u32, count: u32, size: u32, validate: bool },
}

/// A connection.
pub(super) struct Connection {
    // The QP goes before the memory that it may write to.
    qp: QueuePair,
    id: CmId,
    control: MemoryRegion,
    data: MemoryRegion,
    side: Side,
    own_qp: bool,
    failed: bool,
}

impl Connection {
    /// The client's, before it asks for the connection.
    pub(super) fn client(
        id: &CmId,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        args: &Args,
    ) -> Result<Self, VerbsError> {
        let &Args { count, size, validate, .. } = args;
        let side = Side::Client { step: ClientStep::Connect, done: 0, count, size, validate };
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        Self::new(id, pd, cq, args.own_qp, side, rights)
    }

    /// The server's: accepts the request.
    pub(super) fn server(
        event: &CmEvent,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        args: &Args,
    ) -> Result<Self, VerbsError> {
        let side = Side::Server { step: ServerStep::Source, source: Advert::default() };
        let made = Self::new(event.id(), pd, cq, args.own_qp, side, AccessFlags::LOCAL_WRITE)?;
        if made.own_qp {
            made.ready_own_qp()?;
        }
        event.id().accept(&ConnParam { qp_num: made.qpn().value(), ..event.answer() })?;
        Ok(made)
    }

    fn new(
        id: &CmId,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        own_qp: bool,
        side: Side,
        rights: AccessFlags,
    ) -> Result<Self, VerbsError> {
        let cap = QpCap {
            max_send_wr: SEND_WRS,
            max_recv_wr: RECV_WRS,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit { cap, ..QpInit::rc(cq) };
        let qp = if own_qp {
            let qp = pd.create_qp(&init)?;
            qp.to_init(id.query()?.port_num, AccessFlags::NONE)?;
            qp
        } else {
            id.create_qp(pd, &init)?
        };
        let pool = MemoryPool::new(&pd.context(), CONTROL_BYTES + 2 * u64::from(BUFFER_BYTES), PageSize::Base)?;
        let control = pool.register(pd, 0..CONTROL_BYTES, AccessFlags::LOCAL_WRITE)?;
        let data = pool.register(pd, CONTROL_BYTES..pool.bytes(), rights)?;
        let made = Self { qp, id: id.clone(), control, data, side, own_qp, failed: false };
        made.post_recv()?;
        Ok(made)
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    pub(super) fn id(&self) -> &CmId {
        &self.id
    }

    /// The peer accepted, and the QP is our own: gets it ready and confirms.
    pub(super) fn confirm(&self) -> Result<(), VerbsError> {
        self.ready_own_qp()?;
        self.id.establish()
    }

    fn ready_own_qp(&self) -> Result<(), VerbsError> {
        [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().try_for_each(|state| {
            let (attr, mask) = self.id.init_qp_attr(state)?;
            self.qp.modify(&attr, mask).map(drop)
        })
    }

    /// The connection is established: the client begins.
    pub(super) fn begin<W: Write>(&mut self, report: &mut Reporter<'_, W>) -> Result<(), CommandError> {
        report.debug(format_args!("{} established", self.qpn()))?;
        match self.side {
            Side::Client { step: ClientStep::Connect, .. } => self.send_ping(report),
            _ => Ok(()),
        }
    }

    /// Takes a completion, and the next step.
    pub(super) fn take<W: Write>(
        &mut self,
        completion: &WorkCompletion,
        report: &mut Reporter<'_, W>,
    ) -> Result<Progress, CommandError> {
        report.debug(format_args!("{} {} completion", self.qpn(), completion.opcode))?;
        let received = completion.opcode == WcOpcode::Recv;
        if received && completion.byte_len != Advert::BYTES {
            eprintln!("received bogus data, size {}", completion.byte_len);
            return Ok(Progress::Failed);
        }
        let advert = if received { Some(self.take_advert()?) } else { None };
        match self.side {
            Side::Server { .. } => self.serve(completion.opcode, advert, report),
            Side::Client { .. } if received => self.go_on(report),
            Side::Client { .. } => Ok(Progress::Goes),
        }
    }

    fn take_advert(&self) -> Result<Advert, VerbsError> {
        let mut bytes = [0; Advert::BYTES as usize];
        self.control.read(RECV_OFFSET, &mut bytes)?;
        // The peer SENDs again only after we have: this is in time.
        self.post_recv()?;
        Ok(Advert::from_bytes(bytes))
    }

    fn serve<W: Write>(
        &mut self,
        opcode: WcOpcode,
        advert: Option<Advert>,
        report: &mut Reporter<'_, W>,
    ) -> Result<Progress, CommandError> {
        let Side::Server { step, source } = self.side else { return Ok(Progress::Goes) };
        let (step, source) = match (step, opcode, advert) {
            (_, WcOpcode::Send, _) => return Ok(Progress::Goes),
            (ServerStep::Source, WcOpcode::Recv, Some(advert)) => {
                report.debug(format_args!("server received source adv {advert:x?}"))?;
                if advert.size == 0 || advert.size > BUFFER_BYTES {
                    eprintln!("a ping of {} bytes, 1 to {BUFFER_BYTES} are possible", advert.size);
                    return Ok(Progress::Failed);
                }
                let sge = [self.data.sge(0, advert.size)?];
                self.post(&SendWr::read(0, &sge, advert.addr, advert.rkey))?;
                (ServerStep::Read, advert)
            }
            (ServerStep::Read, WcOpcode::RdmaRead, _) => {
                report.ping("server ping data", text(&self.received(source.size)?))?;
                self.send_advert(Advert::default())?;
                (ServerStep::Sink, source)
            }
            (ServerStep::Sink, WcOpcode::Recv, Some(advert)) => {
                report.debug(format_args!("server received sink adv {advert:x?}"))?;
                let length = u32::try_from(text(&self.received(source.size)?).len()).unwrap_or(u32::MAX);
                let sge = [self.data.sge(0, length.saturating_add(1).min(source.size))?];
                self.post(&SendWr::write(0, &sge, advert.addr, advert.rkey))?;
                (ServerStep::Write, source)
            }
            (ServerStep::Write, WcOpcode::RdmaWrite, _) => {
                self.send_advert(Advert::default())?;
                (ServerStep::Source, source)
            }
            (step, opcode, _) => {
                eprintln!("{opcode} while waiting for {step:?}");
                return Ok(Progress::Failed);
            }
        };
        self.side = Side::Server { step, source };
        Ok(Progress::Goes)
    }

    /// The client's next step, after a SEND of the server.
    fn go_on<W: Write>(&mut self, report: &mut Reporter<'_, W>) -> Result<Progress, CommandError> {
        let Side::Client { step, done, count, size, validate } = &mut self.side else { return Ok(Progress::Goes) };
        match step {
            ClientStep::Read => {
                *step = ClientStep::Written;
                let sink = Advert { addr: self.data.addr(), rkey: self.data.rkey(), size: *size };
                report.debug(format_args!("client sends sink adv {sink:x?}"))?;
                self.send_advert(sink)?;
                Ok(Progress::Goes)
            }
            ClientStep::Written => {
                let (number, size, validate) = (*done, *size, *validate);
                *done = done.wrapping_add(1);
                let last = *count != 0 && *done == *count;
                let back = self.received(size)?;
                if validate && back != ping(number, size as usize) {
                    eprintln!("data mismatch!");
                    return Ok(Progress::Failed);
                }
                report.ping("ping data", text(&back))?;
                if last {
                    return Ok(Progress::Done);
                }
                self.send_ping(report)?;
                Ok(Progress::Goes)
            }
            step @ (ClientStep::Connect | ClientStep::End) => {
                eprintln!("a SEND while waiting for {step:?}");
                Ok(Progress::Failed)
            }
        }
    }

    fn send_ping<W: Write>(&mut self, report: &mut Reporter<'_, W>) -> Result<(), CommandError> {
        let Side::Client { step, done, size, .. } = &mut self.side else { return Ok(()) };
        *step = ClientStep::Read;
        self.data.write(SOURCE_OFFSET, &ping(*done, *size as usize))?;
        let source = Advert { addr: self.data.addr() + SOURCE_OFFSET, rkey: self.data.rkey(), size: *size };
        report.debug(format_args!("client sends source adv {source:x?}"))?;
        Ok(self.send_advert(source)?)
    }

    /// What was READ, or the peer wrote.
    fn received(&self, size: u32) -> Result<Vec<u8>, VerbsError> {
        let mut bytes = vec![0; size as usize];
        self.data.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn send_advert(&self, advert: Advert) -> Result<(), VerbsError> {
        self.control.write(SEND_OFFSET, &advert.to_bytes())?;
        self.post(&SendWr::send(0, &[self.control.sge(SEND_OFFSET, Advert::BYTES)?]))
    }

    fn post(&self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        Ok(self.qp.post_send(&wr.signaled())?)
    }

    fn post_recv(&self) -> Result<(), VerbsError> {
        Ok(self.qp.post_recv(&RecvWr::new(0, &[self.control.sge(RECV_OFFSET, Advert::BYTES)?]))?)
    }

    /// Ends the connection from our side; its event follows.
    pub(super) fn end(&mut self, failed: bool) -> Result<(), CommandError> {
        self.failed |= failed;
        if let Side::Client { step, .. } = &mut self.side {
            *step = ClientStep::End;
        }
        match self.disconnect() {
            Err(error) if error.is_disconnected() => Err(error.into()),
            // The peer was faster.
            _ => Ok(()),
        }
    }

    fn disconnect(&self) -> Result<(), VerbsError> {
        if self.own_qp {
            self.qp.to_error()?;
        }
        self.id.disconnect()
    }

    /// After its end: how it went.
    pub(super) fn finish(self) -> Outcome {
        // If the peer ended it, this answers; else it is refused.
        let _ = self.disconnect();
        match self.side {
            _ if self.failed => Outcome::Negative,
            Side::Client { done, count, .. } if done < count => {
                eprintln!("the server disconnected after {done} of {count} pings");
                Outcome::Negative
            }
            _ => Outcome::Good,
        }
    }
}

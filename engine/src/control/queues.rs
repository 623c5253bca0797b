//! Completion queues and shared receive queues.

use std::os::fd::OwnedFd;

use shm::attr::SrqAttr;
use shm::control::Reply;
use shm::layout::QueueShape;
use shm::ring::{CqWriter, RecvFetcher, cq_block_bytes, srq_block_bytes};
use shm::segment::BlockAddress;

use super::session::{CqBook, Session, SrqBook};
use super::{Answered, Control, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::cq::Cq;
use crate::srq::{Srq, XrcPlace};

/// An SRQ to make.
pub(super) struct WantedSrq<'a> {
    pub(super) pd: u32,
    pub(super) shard: u8,
    pub(super) attr: SrqAttr,
    /// Where one of XRC belongs, by its index in the shard.
    pub(super) place: Option<&'a dyn Fn(u32) -> XrcPlace>,
}

/// An SRQ that was made.
pub(super) struct MadeSrq {
    pub(super) srq: u32,
    pub(super) index: u32,
    pub(super) attr: SrqAttr,
    pub(super) shape: QueueShape,
    pub(super) address: BlockAddress,
}

impl Control {
    pub(super) fn create_cq<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        cqe: u32,
        channel: Option<u32>,
        comp_vector: Option<u32>,
    ) -> Result<Answered, Refusal> {
        let max = self.config.limits.max_cqe;
        if cqe == 0 || cqe > max {
            return refuse(errno::EINVAL, format!("a CQ of {cqe} entries: 1 to {max} are allowed"));
        }
        let wake = channel.map(|channel| session.channel(channel)).transpose()?;
        let shard = self.place_cq(session, comp_vector);
        let max = self.config.limits.max_cq;
        self.check_share(session, "CQs on an lcore", max, |s| s.cqs.values().filter(|cq| cq.shard == shard).count())?;
        let depth = cqe.next_power_of_two();
        let (block, address) = session.allocate(cq_block_bytes(depth))?;
        let Some(index) = self.shards[usize::from(shard)].cqs.allocate() else {
            session.segments.release(address);
            let max = self.config.limits.max_cq;
            return refuse(errno::ENOMEM, format!("the limit of {max} CQs is reached"));
        };
        let made = CqWriter::new(&block, depth).or_else(|error| refuse(errno::EINVAL, error.to_string()));
        let made = made.and_then(|writer| Ok((writer, session.new_segment_fds(&[address])?)));
        let (writer, fds) = made.inspect_err(|_| {
            self.shards[usize::from(shard)].cqs.release(index);
            session.segments.release(address);
        })?;
        let handle = session.handle();
        shards.command(shard, Command::AddCq { index, cq: Box::new(Cq::new(writer, number, handle, wake)) });
        if let Some(channel) = channel {
            session.use_channel(channel, true);
        }
        session.cqs.insert(handle, CqBook { shard, index, channel, address, users: 0 });
        Ok((Reply::Cq { cq: handle, shard, depth, block: address }, fds))
    }

    /// Where the client asks; else where the session's CQs are, so that any two of them can serve one QP; else where its XRC domain
    /// is, whose SRQs want a CQ there; else on the shard with the fewest QPs.
    pub(super) fn place_cq(&self, session: &Session, comp_vector: Option<u32>) -> u8 {
        let count = u32::from(self.config.shard_count);
        match (comp_vector, session.cqs.values().next()) {
            (Some(vector), _) => (vector % count) as u8,
            (None, Some(cq)) => cq.shard,
            (None, None) => self.xrc_shard(session).unwrap_or_else(|| {
                let load = |&shard: &u8| self.shards[usize::from(shard)].qps.in_use();
                (0..self.config.shard_count).min_by_key(load).unwrap_or(0)
            }),
        }
    }

    pub(super) fn resize_cq<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        handle: u32,
        cqe: u32,
    ) -> Result<Answered, Refusal> {
        let max = self.config.limits.max_cqe;
        if cqe == 0 || cqe > max {
            return refuse(errno::EINVAL, format!("a CQ of {cqe} entries: 1 to {max} are allowed"));
        }
        let Some(&CqBook { shard, index, .. }) = session.cqs.get(&handle) else {
            return refuse(errno::EINVAL, format!("CQ {handle} does not exist"));
        };
        let depth = cqe.next_power_of_two();
        let (block, address) = session.allocate(cq_block_bytes(depth))?;
        let made = CqWriter::new(&block, depth).or_else(|error| refuse(errno::EINVAL, error.to_string()));
        let made = made.and_then(|writer| Ok((writer, session.new_segment_fds(&[address])?)));
        let (writer, fds) = made.inspect_err(|_| session.segments.release(address))?;
        drop(shards.command(shard, Command::ReplaceCqRing { index, writer: Box::new(writer) }));
        if let Some(book) = session.cqs.get_mut(&handle) {
            // The engine does not touch the old one any more.
            session.segments.release(std::mem::replace(&mut book.address, address));
        }
        Ok((Reply::CqRing { depth, block: address }, fds))
    }

    pub(super) fn destroy_cq<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        handle: u32,
    ) -> Result<Reply, Refusal> {
        let (shard, index, channel, address) = match session.cqs.get(&handle) {
            None => return refuse(errno::EINVAL, format!("CQ {handle} does not exist")),
            Some(CqBook { users: users @ 1.., .. }) => {
                return refuse(errno::EBUSY, format!("CQ {handle} is used by {users} queues: destroy their QPs first"));
            }
            Some(cq) => (cq.shard, cq.index, cq.channel, cq.address),
        };
        session.cqs.remove(&handle);
        // The engine's side goes first: after the answer it does not touch the block.
        drop(shards.command(shard, Command::RemoveCq { index }));
        self.shards[usize::from(shard)].cqs.release(index);
        session.segments.release(address);
        if let Some(channel) = channel {
            session.use_channel(channel, false);
        }
        Ok(Reply::Done)
    }

    pub(super) fn create_srq<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        pd: u32,
        cq: Option<u32>,
        attr: SrqAttr,
    ) -> Result<Answered, Refusal> {
        let shard = match cq.map(|cq| session.cqs.get(&cq).map(|book| book.shard)) {
            Some(Some(shard)) => shard,
            Some(None) => return refuse(errno::EINVAL, format!("CQ {} does not exist", cq.unwrap_or(0))),
            None => self.place_cq(session, None),
        };
        let wanted = WantedSrq { pd, shard, attr, place: None };
        let (made, fds) = self.make_srq(shards, number, session, &wanted)?;
        Ok((Reply::Srq { srq: made.srq, attr: made.attr, shape: made.shape, block: made.address }, fds))
    }

    /// Makes an SRQ of either kind. The file descriptors are to go to the client: nothing may fail after this.
    pub(super) fn make_srq<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        wanted: &WantedSrq<'_>,
    ) -> Result<(MadeSrq, Vec<OwnedFd>), Refusal> {
        let &WantedSrq { pd, shard, attr, .. } = wanted;
        let pd_number = session.pd(pd)?;
        let limits = &self.config.limits;
        let (max_wr, max_sge) = (limits.max_qp_wr, limits.max_sge);
        if attr.max_wr == 0 || attr.max_wr > max_wr {
            return refuse(
                errno::EINVAL,
                format!("an SRQ of {} work requests: 1 to {max_wr} are allowed", attr.max_wr),
            );
        }
        if attr.max_sge > max_sge {
            return refuse(errno::EINVAL, format!("{} SGEs: at most {max_sge} are allowed", attr.max_sge));
        }
        let total = limits.max_srq;
        self.check_share(session, "SRQs on an lcore", total, |s| s.srqs.values().filter(|s| s.shard == shard).count())?;
        let shape = QueueShape::recv(attr.max_wr, attr.max_sge.max(1));
        let granted = SrqAttr { max_wr: shape.depth.min(max_wr), max_sge: shape.max_sge.min(max_sge), srq_limit: 0 };
        let (block, address) = session.allocate(srq_block_bytes(shape))?;
        let indices = &mut self.shards[usize::from(shard)].srqs;
        let Some(index) = indices.allocate() else {
            session.segments.release(address);
            return refuse(errno::ENOMEM, format!("the limit of {total} SRQs is reached"));
        };
        let made = RecvFetcher::new_srq(&block, shape).or_else(|error| refuse(errno::EINVAL, error.to_string()));
        let made = made.and_then(|fetcher| Ok((fetcher, session.new_segment_fds(&[address])?)));
        let (fetcher, fds) = made.inspect_err(|_| {
            self.shards[usize::from(shard)].srqs.release(index);
            session.segments.release(address);
        })?;
        let handle = session.handle();
        let place = wanted.place.map(|place| place(index));
        let srq = Box::new(Srq::new(fetcher, number, handle, pd_number, place));
        shards.command(shard, Command::AddSrq { index, srq });
        session.use_pd(pd, true);
        let book = SrqBook { shard, index, pd, attr: granted, max_sge: shape.max_sge, address, users: 0, xrc: None };
        session.srqs.insert(handle, book);
        Ok((MadeSrq { srq: handle, index, attr: granted, shape, address }, fds))
    }

    pub(super) fn modify_srq<S: Shards>(
        &self,
        shards: &mut S,
        session: &Session,
        handle: u32,
        limit: u32,
    ) -> Result<Reply, Refusal> {
        let Some(srq) = session.srqs.get(&handle) else {
            return refuse(errno::EINVAL, format!("SRQ {handle} does not exist"));
        };
        let max = srq.attr.max_wr;
        if limit > max {
            return refuse(errno::EINVAL, format!("a limit of {limit}: the SRQ holds at most {max} receives"));
        }
        shards.command(srq.shard, Command::SetSrqLimit { index: srq.index, limit });
        Ok(Reply::Done)
    }

    pub(super) fn query_srq<S: Shards>(
        &self,
        shards: &mut S,
        session: &Session,
        handle: u32,
    ) -> Result<Reply, Refusal> {
        let Some(srq) = session.srqs.get(&handle) else {
            return refuse(errno::EINVAL, format!("SRQ {handle} does not exist"));
        };
        let answer = shards.command(srq.shard, Command::QuerySrq { index: srq.index });
        let srq_limit = if let Answer::SrqLimit { limit } = answer { limit } else { 0 };
        Ok(Reply::SrqAttr(SrqAttr { srq_limit, ..srq.attr }))
    }

    pub(super) fn destroy_srq<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        handle: u32,
    ) -> Result<Reply, Refusal> {
        let (shard, index, pd, address, xrc) = match session.srqs.get(&handle) {
            None => return refuse(errno::EINVAL, format!("SRQ {handle} does not exist")),
            Some(SrqBook { users: users @ 1.., .. }) => {
                return refuse(errno::EBUSY, format!("SRQ {handle} is used by {users} QPs: destroy them first"));
            }
            Some(srq) => (srq.shard, srq.index, srq.pd, srq.address, srq.xrc),
        };
        session.srqs.remove(&handle);
        drop(shards.command(shard, Command::RemoveSrq { index }));
        self.shards[usize::from(shard)].srqs.release(index);
        session.segments.release(address);
        session.use_pd(pd, false);
        if let Some(place) = xrc {
            session.use_xrc_srq(place, false);
        }
        Ok(Reply::Done)
    }
}

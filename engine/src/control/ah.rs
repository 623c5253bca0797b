//! Address handles.

use shm::attr::AhAttr;
use shm::control::Reply;

use super::session::Session;
use super::{Control, Refusal, errno, refuse};
use crate::ah::TAG_BITS;
use crate::command::{Answer, Command, Shards};
use crate::qp::state::ModifyError;

/// Address handles that a key can number.
pub(super) const INDEX_COUNT: u32 = 1 << (32 - TAG_BITS);

impl Control {
    pub(super) fn create_ah<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        pd: u32,
        attr: &AhAttr,
    ) -> Result<Reply, Refusal> {
        let pd_number = session.pd(pd)?;
        let Some(index) = self.ahs.allocate() else {
            let limit = self.config.limits.max_ah;
            return refuse(errno::ENOMEM, format!("the limit of {limit} address handles is reached"));
        };
        let key = index << TAG_BITS | (self.entropy)() as u32 & ((1 << TAG_BITS) - 1);
        for shard in 0..self.config.shard_count {
            let command = Command::AddAh { key, pd: pd_number, attr: Box::new(*attr) };
            if let Answer::Refused(error) = shards.command(shard, command) {
                // Shards before this one have it, and one that refused has nothing.
                self.drop_ah(shards, key);
                let errno = if error == ModifyError::NeighbourTableFull { errno::ENOMEM } else { errno::EINVAL };
                return refuse(errno, error.to_string());
            }
        }
        session.ahs.insert(key, pd);
        session.use_pd(pd, true);
        Ok(Reply::Handle(key))
    }

    pub(super) fn destroy_ah<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        ah: u32,
    ) -> Result<Reply, Refusal> {
        let Some(pd) = session.ahs.remove(&ah) else {
            return refuse(errno::EINVAL, format!("address handle {ah} does not exist"));
        };
        self.drop_ah(shards, ah);
        session.use_pd(pd, false);
        Ok(Reply::Done)
    }

    /// Takes an address handle from all shards.
    pub(super) fn drop_ah<S: Shards>(&mut self, shards: &mut S, key: u32) {
        self.command_all(shards, || Command::RemoveAh { key });
        self.ahs.release(key >> TAG_BITS);
    }
}

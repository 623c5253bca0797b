//! One-line description of a frame, for people.

use core::fmt;

use crate::cm::{CmMessage, MadHeader};
use crate::{ExtHeaders, Frame, Qpn};

/// For instance `10.77.0.10 > 10.77.0.11 RC_WRITE_FIRST qpn 0x000027 psn 0x0a0000 RETH va 0x7f00 rkey 0x00001a9b len 4096
/// payload 1024 icrc ok`. Flags and fields that are zero are left out.
impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = self.bth();
        write!(f, "{} > {} {} qpn {} psn {}", self.src_ip(), self.dst_ip(), bth.opcode, bth.dest_qpn, bth.psn)?;
        for (is_set, name) in [
            (bth.ack_req, "ackreq"),
            (bth.solicited, "solicited"),
            (bth.fecn, "fecn"),
            (bth.becn, "becn"),
            (self.is_roce_v1(), "rocev1"),
        ] {
            if is_set {
                write!(f, " {name}")?;
            }
        }
        if let Some(tag) = self.vlan() {
            write!(f, " vlan {tag}")?;
        }
        if self.traffic_class() != 0 {
            write!(f, " tclass {:#04x}", self.traffic_class())?;
        }
        self.fmt_ext(f)?;
        if let Some((header, message)) = self.cm_message() {
            write!(f, " MAD tid {} {message}", header.transaction_id)?;
        }
        let verdict = if self.icrc_ok() { "ok" } else { "bad" };
        write!(f, " payload {} icrc {verdict}", self.payload().len())
    }
}

impl Frame<'_> {
    /// The message of connection management that the frame carries, if it is one to the general services interface.
    ///
    /// Cost: decodes the message.
    #[must_use]
    pub fn cm_message(&self) -> Option<(MadHeader, CmMessage)> {
        let is_gsi = self.deth().is_some() && self.bth().dest_qpn == Qpn::GSI;
        is_gsi.then(|| CmMessage::parse(self.payload()).ok()).flatten()
    }

    /// The extension headers, in their order.
    fn fmt_ext(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(xrceth) = self.xrceth() {
            write!(f, " XRCETH srqn {:#08x}", xrceth.srqn)?;
        }
        if let Some(deth) = self.deth() {
            write!(f, " DETH qkey {} src_qpn {}", deth.qkey, deth.src_qpn)?;
        }
        if self.info().ext.contains(ExtHeaders::FETH) {
            f.write_str(" FETH")?;
        }
        if let Some(reth) = self.reth() {
            write!(f, " RETH va {:#x} rkey {} len {}", reth.va, reth.rkey, reth.dma_len)?;
        }
        if let Some(atomic) = self.atomiceth() {
            write!(f, " AtomicETH va {:#x} rkey {}", atomic.va, atomic.rkey)?;
            write!(f, " swap_or_add {:#x} compare {:#x}", atomic.swap_or_add, atomic.compare)?;
        }
        if let Some(aeth) = self.aeth() {
            write!(f, " AETH {} msn {}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(result) = self.atomicacketh() {
            write!(f, " AtomicAckETH original {:#x}", result.original)?;
        }
        if let Some(imm) = self.immdt() {
            write!(f, " ImmDt {:#010x}", imm.data)?;
        }
        if let Some(ieth) = self.ieth() {
            write!(f, " IETH rkey {}", ieth.rkey)?;
        }
        if let Some(sack) = self.sacketh() {
            write!(f, " SACKETH missing {} has {sack}", self.bth().psn.add(1))?;
        }
        Ok(())
    }
}

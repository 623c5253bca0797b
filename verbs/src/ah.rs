//! Address handles.

use std::fmt;
use std::sync::Arc;

use shm::control::Request;

use crate::context::RemoteObject;
use crate::pd::PdInner;
use crate::{AhAttr, Context, ProtectionDomain, VerbsError};

/// An address handle (`ibv_ah`): where a UD QP's datagrams go, one host or a multicast group. Any UD QP of its domain and its
/// port may use it. A cheap handle; it keeps its domain alive.
///
/// The engine looks at it when it sends: keep it until the datagrams that name it have completed.
///
/// ```no_run
/// # fn example(pd: ferroce::ProtectionDomain, qp: ferroce::QueuePair, peer: ferroce::Gid, peer_qpn: ferroce::Qpn)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use ferroce::{AhAttr, Psn, SendWr};
///
/// const QKEY: u32 = 0x1111_1111;
/// ferroce::start_datagrams(&qp, 1, QKEY, Psn::new(7))?;
/// let ah = pd.create_ah(&AhAttr { dgid: peer, port_num: 1, ..AhAttr::default() })?;
/// qp.post_send(&SendWr::send(1, &[]).inline(b"hello").to(&ah, peer_qpn, QKEY).signaled())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AddressHandle(Arc<AhInner>);

struct AhInner {
    remote: RemoteObject,
    ah: u32,
    attr: AhAttr,
    _pd: Arc<PdInner>,
}

impl ProtectionDomain {
    /// Makes an address handle. The next hop is asked for at once, if it is not known.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for a port, GID or number that does not exist, `ENOMEM` at the limit of handles or of
    /// the port's neighbours.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<AddressHandle, VerbsError> {
        let context = self.0.context();
        let ah = context.call_for_handle(&Request::CreateAh { pd: self.0.pd, attr: *attr }, "CreateAh")?;
        let remote = RemoteObject::new(context, Request::DestroyAh { ah });
        Ok(AddressHandle(Arc::new(AhInner { remote, ah, attr: *attr, _pd: Arc::clone(&self.0) })))
    }
}

impl AddressHandle {
    /// What it was made from.
    pub fn attr(&self) -> AhAttr {
        self.0.attr
    }

    /// Its number: what work requests name.
    pub fn handle(&self) -> u32 {
        self.0.ah
    }

    /// The session that it belongs to.
    pub fn context(&self) -> Context {
        Context(Arc::clone(&self.0.remote.context))
    }

    /// Destroys it. Datagrams that name it and have not been sent fail with `LOC_QP_OP_ERR`. Dropping the last handle does so
    /// too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "address handle" })?;
        inner.remote.release()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("ah", &self.0.ah).field("attr", &self.0.attr).finish_non_exhaustive()
    }
}

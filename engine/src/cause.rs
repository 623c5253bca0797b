//! Why a work request or a QP failed: the number in a completion's `vendor_err`, and its sentence.

/// Causes of failure. The numbers are stable: `docs/errors.md` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ErrorCause {
    /// The QP was in ERR already, or went there for another reason.
    Flushed = 1,
    /// `retry_cnt` timeouts or sequence NAKs without progress.
    RetryExceeded = 2,
    /// `rnr_retry` RNR NAKs without progress.
    RnrRetryExceeded = 3,
    /// The peer answered NAK 1.
    NakInvalidRequest = 4,
    /// The peer answered NAK 2.
    NakRemoteAccess = 5,
    /// The peer answered NAK 3.
    NakRemoteOperation = 6,
    /// The peer answered with a reserved syndrome.
    ReservedSyndrome = 7,
    /// A response whose length does not fit its request.
    ResponseLength = 8,
    /// A response whose opcode does not fit its request.
    ResponseOpcode = 9,
    /// The work request's opcode does not exist or the QP's service has no such operation.
    BadOpcode = 16,
    /// The work request's SGE count or inline length exceeds the queue's.
    BadWqe = 17,
    /// The SGEs add up to more than a message may have (or, for an atomic, not to 8 bytes).
    BadLength = 18,
    /// An L_Key that does not exist.
    UnknownKey = 19,
    /// A region of another protection domain.
    WrongPd = 20,
    /// Bytes outside a region.
    OutOfRange = 21,
    /// A region without the right that the operation needs.
    NoRight = 22,
    /// More READs or atomics wanted than the QP's `max_rd_atomic` of 0 allows.
    NoRdAtomic = 23,
    /// The client wrote a ring index that no correct client writes.
    BadRingIndex = 24,
    /// A packet larger than the port takes.
    FrameTooLong = 25,
    /// A completion was lost because the CQ was full.
    CqOverrun = 26,
    /// As responder: an invalid request came.
    InvalidRequestReceived = 32,
    /// As responder: a message longer than the receive came.
    ReceiveTooShort = 33,
    /// As responder: an access violation came.
    AccessViolationReceived = 34,
    /// As responder: the receive's SGEs were not usable.
    BadReceive = 35,
    /// The application moved the QP to ERR.
    ByApplication = 48,
}

impl ErrorCause {
    /// The number for `vendor_err`.
    #[inline]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// A sentence for an operator.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Flushed => "the QP was in ERR",
            Self::RetryExceeded => {
                "no answer to retry_cnt transmissions: the peer's QPN may be gone, or UDP port 4791 is filtered on the path"
            }
            Self::RnrRetryExceeded => "the peer had no receive posted, rnr_retry times in a row",
            Self::NakInvalidRequest => "the peer refused the request as invalid: its QP lacks the right, or the message is longer than its receive",
            Self::NakRemoteAccess => "the peer refused the access: wrong R_Key, range, right or protection domain",
            Self::NakRemoteOperation => "the peer failed to execute the request",
            Self::ReservedSyndrome => "the peer answered with a syndrome that is reserved",
            Self::ResponseLength => "a response's length did not fit its request",
            Self::ResponseOpcode => "a response's opcode did not fit its request",
            Self::BadOpcode => "the work request's opcode is not one of this service",
            Self::BadWqe => "the work request has more SGEs or inline bytes than the queue was made for",
            Self::BadLength => "the SGEs add up to a length that the operation can't have",
            Self::UnknownKey => "an L_Key does not exist",
            Self::WrongPd => "a region belongs to another protection domain",
            Self::OutOfRange => "an SGE reaches outside its region",
            Self::NoRight => "a region lacks the right that the operation needs",
            Self::NoRdAtomic => "the QP's max_rd_atomic is 0: it can do no READ or atomic",
            Self::BadRingIndex => "the client wrote a ring index that claims more entries than the queue has",
            Self::FrameTooLong => "a packet is larger than the port takes: the path MTU is too large for the interface",
            Self::CqOverrun => "a completion was lost because the CQ was full",
            Self::InvalidRequestReceived => "the peer sent an invalid request",
            Self::ReceiveTooShort => "the peer sent a message longer than the receive",
            Self::AccessViolationReceived => "the peer tried an access that R_Key, range, right or protection domain forbid",
            Self::BadReceive => "a receive's SGEs were not usable",
            Self::ByApplication => "the application moved the QP to ERR",
        }
    }
}

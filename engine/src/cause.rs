//! Why a work request or a QP failed: the number in a completion's `vendor_err`, and its sentence.

/// Declares the causes with their numbers and sentences.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $code:literal, $sentence:literal;)*) => {
        /// Causes of failure. The numbers are stable: `docs/errors.md` lists them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum ErrorCause {
            $($(#[$doc])* $cause = $code,)*
        }
        impl ErrorCause {
            /// All of them, by rising number.
            pub const ALL: &[Self] = &[$(Self::$cause),*];

            /// A sentence for an operator.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$cause => $sentence,)*
                }
            }
        }
    };
}

causes! {
    /// The QP was in ERR already, or went there for another reason.
    Flushed = 1,
        "the QP was in ERR";
    /// `retry_cnt` timeouts or sequence NAKs without progress.
    RetryExceeded = 2,
        "no answer to retry_cnt transmissions: the peer's QPN may be gone, or UDP port 4791 is filtered on the path";
    /// `rnr_retry` RNR NAKs without progress.
    RnrRetryExceeded = 3,
        "the peer had no receive posted, rnr_retry times in a row";
    /// The peer answered NAK 1.
    NakInvalidRequest = 4,
        "the peer refused the request as invalid: its QP lacks the right, or the message is longer than its receive";
    /// The peer answered NAK 2.
    NakRemoteAccess = 5,
        "the peer refused the access: wrong R_Key, range, right or protection domain, or (XRC) SRQ number";
    /// The peer answered NAK 3.
    NakRemoteOperation = 6,
        "the peer failed to execute the request";
    /// The peer answered with a reserved syndrome.
    ReservedSyndrome = 7,
        "the peer answered with a syndrome that is reserved";
    /// A response whose length does not fit its request.
    ResponseLength = 8,
        "a response's length did not fit its request";
    /// A response whose opcode does not fit its request.
    ResponseOpcode = 9,
        "a response's opcode did not fit its request";
    /// Nobody answers for the peer's address on the network.
    NeighbourUnresolved = 10,
        "no host answers for the peer's address on the network: its MAC address is not known";
    /// The work request's opcode does not exist or the QP's service has no such operation.
    BadOpcode = 16,
        "the work request's opcode is not one of this service";
    /// The work request's SGE count or inline length exceeds the queue's.
    BadWqe = 17,
        "the work request has more SGEs or inline bytes than the queue was made for";
    /// The SGEs add up to more than a message may have (or, for an atomic, not to 8 bytes).
    BadLength = 18,
        "the SGEs add up to a length that the operation can't have";
    /// An L_Key that does not exist.
    UnknownKey = 19,
        "an L_Key does not exist";
    /// A region of another protection domain.
    WrongPd = 20,
        "a region belongs to another protection domain";
    /// Bytes outside a region.
    OutOfRange = 21,
        "an SGE reaches outside its region";
    /// A region without the right that the operation needs.
    NoRight = 22,
        "a region lacks the right that the operation needs";
    /// More READs or atomics wanted than the QP's `max_rd_atomic` of 0 allows.
    NoRdAtomic = 23,
        "the QP's max_rd_atomic is 0: it can do no READ or atomic";
    /// The client wrote a ring index that no correct client writes.
    BadRingIndex = 24,
        "the client wrote a ring index that claims more entries than the queue has";
    /// A packet larger than the port takes.
    FrameTooLong = 25,
        "a packet is larger than the port takes: the path MTU is too large for the interface";
    /// A completion was lost because the CQ was full.
    CqOverrun = 26,
        "a completion was lost because the CQ was full";
    /// The address handle does not exist (any more), or belongs to another protection domain or port.
    BadAddressHandle = 27,
        "the address handle does not exist, or belongs to another protection domain or port than the QP's";
    /// A datagram longer than the port's path MTU.
    DatagramTooLong = 28,
        "a datagram is longer than the path MTU of the port, and can't be cut into several";
    /// Registered memory that is not mapped in the application (any more).
    NotMapped = 29,
        "registered memory is not mapped in the application any more, or the application is gone";
    /// As responder: an invalid request came.
    InvalidRequestReceived = 32,
        "the peer sent an invalid request";
    /// As responder: a message longer than the receive came.
    ReceiveTooShort = 33,
        "the peer sent a message longer than the receive";
    /// As responder: an access violation came.
    AccessViolationReceived = 34,
        "the peer tried an access that R_Key, range, right or protection domain forbid";
    /// As responder: the receive's SGEs were not usable.
    BadReceive = 35,
        "a receive's SGEs were not usable";
    /// As responder of XRC: a request came for an SRQ that is not of the QP's domain.
    WrongSrq = 36,
        "the peer named an SRQ that does not exist in the QP's XRC domain";
    /// The application moved the QP to ERR.
    ByApplication = 48,
        "the application moved the QP to ERR";
    /// BIND_MW of a window that can't be bound now.
    WindowUnusable = 64,
        "no window of the QP's protection domain has the key, or the new key is not one of its keys, or the window (type 2) is bound";
    /// BIND_MW to a region that takes no such window.
    WindowRegion = 65,
        "the region does not exist, is of another protection domain, or lacks MW_BIND or the LOCAL_WRITE that a writable window needs";
    /// BIND_MW of a range or rights that no window can have.
    WindowRange = 66,
        "the window would reach outside its region, be empty, or give rights that a window can't give";
    /// LOCAL_INV of a key that can't be invalidated.
    InvalidateFailed = 67,
        "the key to invalidate is of no window (type 2) that is bound for this QP, and of no region with remote rights";
}

impl ErrorCause {
    /// The number for `vendor_err`.
    #[inline]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

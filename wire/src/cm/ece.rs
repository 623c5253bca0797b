//! Enhanced connection establishment: what the makers of two devices agree on beyond the specification's own fields.
//!
//! A vendor id, in bytes that used to be reserved, and options in the MAD's attribute modifier. Who does not know it
//! sends zeros and looks at neither, as Linux's connection manager does for devices without it.

/// Vendor and options of a REQ, or the answer in a REP. All zeros: nothing is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// 24 bits: whose options they are.
    pub vendor_id: u32,
    /// What the vendor makes of them. In the MAD's header, so the message's own codec leaves it 0.
    pub options: u32,
}

impl Ece {
    /// This engine. Locally administered, as it is nobody's registered number.
    pub const FERROCE: u32 = 0x02_fe_ce;
    /// Option: the QP sends and understands selective acknowledgements.
    pub const SELECTIVE_REPEAT: u32 = 1;

    /// Says whether the sender's QP can do selective repeat.
    #[must_use]
    pub const fn new(is_selective: bool) -> Self {
        if is_selective {
            Self { vendor_id: Self::FERROCE, options: Self::SELECTIVE_REPEAT }
        } else {
            Self { vendor_id: 0, options: 0 }
        }
    }

    /// What this engine's QPs do of what `asked` says: the vendor is always ours.
    #[must_use]
    pub const fn accepting(asked: &Self, can_repeat_selectively: bool) -> Self {
        let agreed = can_repeat_selectively && asked.is_selective();
        Self { vendor_id: Self::FERROCE, options: if agreed { Self::SELECTIVE_REPEAT } else { 0 } }
    }

    /// Whether the sender's QP can do selective repeat.
    #[must_use]
    pub const fn is_selective(&self) -> bool {
        self.vendor_id == Self::FERROCE && self.options & Self::SELECTIVE_REPEAT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_vendors_options_say_nothing() {
        assert!(Ece::new(true).is_selective());
        assert!(!Ece::new(false).is_selective());
        assert!(!Ece { vendor_id: 0x00_02c9, options: u32::MAX }.is_selective());
        assert!(!Ece { vendor_id: Ece::FERROCE, options: 2 }.is_selective());
    }

    #[test]
    fn what_is_accepted_is_what_both_can_do() {
        let asked = Ece { vendor_id: Ece::FERROCE, options: u32::MAX };
        assert_eq!(Ece::accepting(&asked, true), Ece::new(true));
        assert_eq!(Ece::accepting(&asked, false), Ece { vendor_id: Ece::FERROCE, options: 0 });
        assert!(!Ece::accepting(&Ece::new(false), true).is_selective());
    }
}

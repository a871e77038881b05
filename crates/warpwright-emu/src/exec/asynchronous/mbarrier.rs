//! The state of an mbarrier, apart from memory and threads.
//!
//! A phase completes when all expected arrivals have happened and as many bytes have landed as were announced. The next
//! phase then begins at once with the expected count.

/// The largest count of arrivals, and of bytes of one phase in either direction.
pub(crate) const MAX_COUNT: u32 = (1 << 20) - 1;

/// Uses that PTX leaves undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// A count of 0 or beyond the limit.
    Count {
        /// The count.
        got: u32,
    },
    /// More arrivals than the phase waits for.
    Overflow {
        /// Arrivals that the phase still waited for.
        pending: u32,
        /// Arrivals that came.
        got: u32,
    },
    /// `.noComplete` by the last arrival.
    Completes,
    /// More bytes than a phase can count.
    Bytes {
        /// The sum that does not fit.
        got: i64,
    },
}

/// An mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mbarrier {
    /// Phases that have completed.
    pub(crate) phase: u32,
    /// Arrivals of every phase.
    pub(crate) expected: u32,
    /// Arrivals that this phase still waits for.
    pub(crate) pending: u32,
    /// Bytes announced minus bytes landed.
    pub(crate) tx: i32,
}

/// Tag of the words that arrivals return and of those in memory.
const TOKEN: u64 = 0x5 << 60;
const WORD: u64 = 0x9 << 60;
const TAG: u64 = 0xF << 60;

impl Mbarrier {
    /// `mbarrier.init`
    pub(crate) fn new(count: u32) -> Result<Self, Misuse> {
        if count == 0 || count > MAX_COUNT {
            return Err(Misuse::Count { got: count });
        }
        Ok(Self { phase: 0, expected: count, pending: count, tx: 0 })
    }

    /// Completes the phase if nothing is missing; whether it did.
    fn complete(&mut self) -> bool {
        let done = self.pending == 0 && self.tx == 0;
        if done {
            self.phase = self.phase.wrapping_add(1);
            self.pending = self.expected;
        }
        done
    }

    /// `count` arrivals; whether they complete the phase.
    pub(crate) fn arrive(&mut self, count: u32) -> Result<bool, Misuse> {
        if count > self.pending {
            return Err(Misuse::Overflow { pending: self.pending, got: count });
        }
        self.pending -= count;
        Ok(self.complete())
    }

    /// Arrivals that must not complete the phase.
    pub(crate) fn arrive_no_complete(&mut self, count: u32) -> Result<(), Misuse> {
        if count > self.pending {
            return Err(Misuse::Overflow { pending: self.pending, got: count });
        }
        if count == self.pending && self.tx == 0 {
            return Err(Misuse::Completes);
        }
        self.pending -= count;
        Ok(())
    }

    /// Takes `count` threads out of all later phases; their arrival in this one follows.
    pub(crate) fn drop_expected(&mut self, count: u32) -> Result<(), Misuse> {
        if count > self.expected {
            return Err(Misuse::Overflow { pending: self.expected, got: count });
        }
        self.expected -= count;
        Ok(())
    }

    /// One more arrival in this phase, for `cp.async.mbarrier.arrive` without `.noinc`.
    pub(crate) fn increase(&mut self) -> Result<(), Misuse> {
        if self.pending >= MAX_COUNT {
            return Err(Misuse::Count { got: self.pending + 1 });
        }
        self.pending += 1;
        Ok(())
    }

    /// Announces bytes.
    pub(crate) fn expect_tx(&mut self, bytes: u32) -> Result<(), Misuse> {
        self.tx = self.sum(i64::from(bytes))?;
        Ok(())
    }

    /// Bytes have landed; whether they complete the phase.
    pub(crate) fn complete_tx(&mut self, bytes: u32) -> Result<bool, Misuse> {
        self.tx = self.sum(-i64::from(bytes))?;
        Ok(self.complete())
    }

    fn sum(&self, change: i64) -> Result<i32, Misuse> {
        let got = i64::from(self.tx) + change;
        i32::try_from(got).ok().filter(|v| v.unsigned_abs() <= MAX_COUNT).ok_or(Misuse::Bytes { got })
    }

    /// Whether the phase with this parity has completed: the one before the current one, or the current one not yet.
    pub(crate) fn has_completed_parity(&self, parity: u32) -> bool {
        self.phase.wrapping_sub(1) & 1 == parity & 1
    }

    /// Whether the phase in which a token was made has completed.
    pub(crate) fn has_completed(&self, token: u64) -> bool {
        token_phase(token) != self.phase
    }

    /// The result of an arrival: the state before it.
    pub(crate) fn token(&self) -> u64 {
        TOKEN | u64::from(self.phase) << 20 | u64::from(self.pending)
    }

    /// The word in memory: the state, folded so that every change shows.
    pub(crate) fn word(&self) -> u64 {
        let counts = u64::from(self.pending) | u64::from(self.expected) << 20;
        let rest = u64::from(self.tx as u32).wrapping_mul(0x9E37_79B9) ^ u64::from(self.phase) << 24;
        WORD | (counts ^ rest.wrapping_mul(0x0001_0000_01B3)) & !TAG
    }
}

/// The phase in which a token was made.
fn token_phase(token: u64) -> u32 {
    (token >> 20) as u32
}

/// Whether a value is one that an arrival returned.
pub(crate) fn is_token(value: u64) -> bool {
    value & TAG == TOKEN
}

/// Whether a value looks like an mbarrier in memory.
pub(crate) fn is_word(value: u64) -> bool {
    value & TAG == WORD
}

/// `mbarrier.pending_count`
pub(crate) fn pending_count(token: u64) -> u32 {
    token as u32 & MAX_COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_needs_its_arrivals_and_its_bytes() {
        let mut b = Mbarrier::new(2).unwrap();
        let token = b.token();
        assert!(!b.arrive(1).unwrap());
        b.expect_tx(48).unwrap();
        assert!(!b.arrive(1).unwrap());
        assert!(!b.complete_tx(32).unwrap());
        assert!(!b.has_completed(token) && !b.has_completed_parity(0) && b.has_completed_parity(1));
        assert!(b.complete_tx(16).unwrap());
        assert!(b.has_completed(token) && b.has_completed_parity(0) && !b.has_completed_parity(1));
        assert_eq!(b, Mbarrier { phase: 1, expected: 2, pending: 2, tx: 0 });
    }

    #[test]
    fn bytes_may_land_before_they_are_announced() {
        let mut b = Mbarrier::new(1).unwrap();
        assert!(!b.complete_tx(64).unwrap());
        assert_eq!(b.tx, -64);
        b.expect_tx(64).unwrap();
        assert!(b.arrive(1).unwrap());
    }

    #[test]
    fn dropped_threads_are_missing_from_the_next_phase_on() {
        let mut b = Mbarrier::new(3).unwrap();
        b.drop_expected(1).unwrap();
        assert!(!b.arrive(1).unwrap());
        assert!(b.arrive(2).unwrap());
        assert_eq!((b.expected, b.pending), (2, 2));
        assert_eq!(b.drop_expected(3), Err(Misuse::Overflow { pending: 2, got: 3 }));
    }

    #[test]
    fn what_is_undefined_is_refused() {
        assert_eq!(Mbarrier::new(0), Err(Misuse::Count { got: 0 }));
        assert_eq!(Mbarrier::new(1 << 20), Err(Misuse::Count { got: 1 << 20 }));
        let mut b = Mbarrier::new(2).unwrap();
        assert_eq!(b.arrive(3), Err(Misuse::Overflow { pending: 2, got: 3 }));
        assert_eq!(b.arrive_no_complete(2), Err(Misuse::Completes));
        b.arrive_no_complete(1).unwrap();
        b.expect_tx(MAX_COUNT).unwrap();
        assert_eq!(b.expect_tx(1), Err(Misuse::Bytes { got: 1 << 20 }));
        // With bytes missing the last arrival does not complete.
        b.arrive_no_complete(1).unwrap();
        assert_eq!(b.arrive(1), Err(Misuse::Overflow { pending: 0, got: 1 }));
        let mut negative = Mbarrier::new(1).unwrap();
        negative.complete_tx(MAX_COUNT).unwrap();
        assert_eq!(negative.complete_tx(1), Err(Misuse::Bytes { got: -(1 << 20) }));
    }

    #[test]
    fn tokens_and_words_are_told_apart() {
        let mut b = Mbarrier::new(5).unwrap();
        b.arrive(2).unwrap();
        assert!(is_token(b.token()) && !is_word(b.token()));
        assert!(is_word(b.word()) && !is_token(b.word()));
        assert_eq!(pending_count(b.token()), 3);
        let before = b.word();
        b.arrive(1).unwrap();
        assert_ne!(b.word(), before);
        let before = b.word();
        b.expect_tx(16).unwrap();
        assert_ne!(b.word(), before);
    }

    #[test]
    fn phases_wrap() {
        let mut b = Mbarrier { phase: u32::MAX, ..Mbarrier::new(1).unwrap() };
        let token = b.token();
        assert!(!b.has_completed(token));
        assert!(b.arrive(1).unwrap());
        assert!(b.has_completed(token));
        assert!(b.has_completed_parity(1));
    }
}

//! The plans behind the free functions.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, OnceLock};

use tracing::debug;
use warpwright_ptx::Target;

use super::{Operation, Plan, lock};
use crate::PlanError;

/// A hash for descriptors, which are short and come from the program itself: a multiplication a word.
#[derive(Default)]
struct ShortHasher(u64);

impl Hasher for ShortHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        // An odd factor with bits everywhere: that of the golden ratio.
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        // The table takes its places from the low bits, into which a product carries little.
        self.0 ^ (self.0 >> 32)
    }
}

type Plans<O> = HashMap<(O, Target), Plan<O>, BuildHasherDefault<ShortHasher>>;

/// The plans behind the free functions, by descriptor and target.
pub struct PlanCache<O> {
    plans: OnceLock<Mutex<Plans<O>>>,
}

impl<O> fmt::Debug for PlanCache<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlanCache")
    }
}

impl<O: Operation> Default for PlanCache<O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: Operation> PlanCache<O> {
    /// Plans are cheap once their kernels are recorded, so a cache that lengths have flooded starts over.
    const CAPACITY: usize = 1024;

    /// An empty cache.
    pub const fn new() -> Self {
        Self { plans: OnceLock::new() }
    }

    /// The plan of `desc`.
    ///
    /// # Errors
    /// Those of [`Operation::plan`]; failures are not kept.
    pub fn get(&self, desc: &O, target: Target) -> Result<Plan<O>, PlanError> {
        let plans = self.plans.get_or_init(Mutex::default);
        let key = (desc.clone(), target);
        let known = lock(plans).get(&key).cloned();
        if let Some(plan) = known {
            let (op, direction) = (plan.op(), plan.direction().name());
            debug!(target: "warpwright::cache", op, direction, store = "plans", "hit");
            return Ok(plan);
        }
        let plan = desc.plan(target)?;
        let mut plans = lock(plans);
        if plans.len() >= Self::CAPACITY {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(plan)
    }
}

//! The nets of the cases, and how their steps are launched.

use std::fmt;

use warpwright_ops::gemm::Precision;
use warpwright_ops::recurrent::Biases;
use warpwright_ops::recurrent::tuning::{ExchangeKind, PersistentConfig, Schedule};

use crate::case::Scope;

/// The subject of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Time steps, sequences, elements of an input, units.
    pub(super) sizes: [usize; 4],
    /// Elements that hidden states are projected to, or 0.
    pub(super) projection: usize,
    pub(super) layers: usize,
    pub(super) directions: usize,
    pub(super) batch_first: bool,
    pub(super) biases: Biases,
    /// Whether first states are given, and those of the end have gradients.
    pub(super) state: bool,
    pub(super) lengths: bool,
    pub(super) training: bool,
    /// The probability that an element is dropped between layers.
    pub(super) dropout: Option<f64>,
    /// How exact products of `f32` are.
    pub(super) precision: Precision,
    pub(super) how: How,
    /// Whether it is the primitive of a single step.
    pub(super) is_cell: bool,
    /// Elements past an aligned address.
    pub(super) lead: usize,
}

/// How the steps are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// As tuning says.
    Tuned,
    /// As given; as tuning says if that cannot be.
    Given(Schedule),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tuned => f.write_str("tuned"),
            Self::Given(Schedule::Persistent(config)) => config.fmt(f),
            Self::Given(Schedule::Stepwise) => f.write_str("step by step"),
        }
    }
}

pub(super) const PLAIN: Situation = Situation {
    sizes: [5, 1, 24, 32],
    projection: 0,
    layers: 1,
    directions: 1,
    batch_first: false,
    biases: Biases::Two,
    state: true,
    lengths: false,
    training: false,
    dropout: None,
    precision: Precision::Full,
    how: How::Tuned,
    is_cell: false,
    lead: 0,
};

/// Every step by itself.
pub(super) const STEPWISE: How = How::Given(Schedule::Stepwise);

/// Blocks of so many units, in so many groups, that hand over all they have at once, or word by word, or within clusters of so
/// many sequences.
pub(super) const fn flagged(units: u32, groups: u32) -> How {
    How::Given(Schedule::Persistent(PersistentConfig { units, groups, exchange: ExchangeKind::Flagged }))
}

pub(super) const fn ll(units: u32, groups: u32) -> How {
    How::Given(Schedule::Persistent(PersistentConfig { units, groups, exchange: ExchangeKind::Ll }))
}

/// The same whose elements say themselves which step they are of.
pub(super) const fn inband(units: u32, groups: u32) -> How {
    How::Given(Schedule::Persistent(PersistentConfig { units, groups, exchange: ExchangeKind::Inband }))
}

pub(super) const fn dsmem(units: u32, sequences: u32) -> How {
    How::Given(Schedule::Persistent(PersistentConfig {
        units,
        groups: 1,
        exchange: ExchangeKind::Dsmem { sequences },
    }))
}

/// Steps of a long sequence.
pub(super) const LONG: usize = 1000;

pub(super) fn situations(scope: Scope) -> Vec<Situation> {
    let (one, none) = (Biases::One, Biases::Absent);
    let mut all = vec![
        PLAIN,
        Situation { sizes: [4, 3, 8, 64], training: true, ..PLAIN },
        Situation { sizes: [3, 9, 16, 48], state: false, ..PLAIN },
        Situation { sizes: [3, 2, 7, 11], biases: none, ..PLAIN },
        Situation { sizes: [1, 4, 5, 16], biases: one, state: false, lead: 1, ..PLAIN },
        Situation { sizes: [6, 2, 16, 32], how: STEPWISE, ..PLAIN },
        Situation { sizes: [2, 0, 4, 8], ..PLAIN },
        Situation { sizes: [4, 4, 8, 16], lengths: true, layers: 2, directions: 2, ..PLAIN },
        Situation { sizes: [4, 5, 7, 11], lengths: true, directions: 2, batch_first: true, ..PLAIN },
        Situation { sizes: [1, 3, 8, 16], is_cell: true, ..PLAIN },
        Situation { sizes: [1, 0, 8, 16], is_cell: true, ..PLAIN },
        Situation { sizes: [1, 2, 5, 7], is_cell: true, biases: one, lead: 1, training: true, ..PLAIN },
        Situation { sizes: [1, 4, 264, 24], lengths: true, directions: 2, training: true, ..PLAIN },
        Situation { sizes: [1, 11, 40, 24], is_cell: true, training: true, ..PLAIN },
        Situation { sizes: [1, 37, 72, 24], lengths: true, directions: 2, training: true, ..PLAIN },
        Situation { sizes: [4, 5, 7, 11], projection: 6, lengths: true, layers: 2, directions: 2, ..PLAIN },
        Situation { sizes: [5, 3, 7, 11], dropout: Some(0.3), layers: 3, directions: 2, ..PLAIN },
        Situation { sizes: [3, 5, 8, 128], lengths: true, how: flagged(16, 1), ..PLAIN },
        Situation { sizes: [3, 16, 8, 64], training: true, how: flagged(16, 2), ..PLAIN },
        Situation { sizes: [3, 6, 8, 32], lengths: true, how: ll(16, 2), ..PLAIN },
        Situation { sizes: [3, 8, 8, 32], lengths: true, training: true, how: ll(16, 1), ..PLAIN },
        Situation { sizes: [4, 3, 8, 64], lengths: true, training: true, how: dsmem(8, 2), ..PLAIN },
        Situation { sizes: [7, 3, 8, 64], lengths: true, training: true, how: inband(16, 1), ..PLAIN },
        Situation { sizes: [6, 20, 8, 32], directions: 2, how: inband(8, 2), ..PLAIN },
        Situation { sizes: [5, 2, 8, 64], state: false, training: true, how: inband(16, 1), ..PLAIN },
    ];
    if scope == Scope::Full {
        all.extend([
            Situation { sizes: [1, 2, 1032, 8], is_cell: true, ..PLAIN },
            Situation { sizes: [1, 18, 8, 24], state: false, biases: one, ..PLAIN },
            Situation { sizes: [40, 2, 16, 32], ..PLAIN },
            Situation { sizes: [LONG, 1, 4, 16], ..PLAIN },
            Situation { sizes: [3, 17, 16, 64], lengths: true, ..PLAIN },
            Situation { sizes: [2, 16, 8, 128], how: flagged(16, 2), ..PLAIN },
            Situation { sizes: [5, 18, 16, 128], training: true, how: flagged(16, 1), ..PLAIN },
            Situation { sizes: [2, 5, 8, 256], how: flagged(16, 1), ..PLAIN },
            Situation { sizes: [3, 4, 16, 64], how: ll(4, 1), ..PLAIN },
            Situation { sizes: [3, 17, 16, 32], lengths: true, how: ll(8, 1), ..PLAIN },
            Situation { sizes: [3, 9, 8, 256], lengths: true, how: dsmem(32, 4), ..PLAIN },
            Situation { sizes: [4, 40, 8, 64], training: true, lengths: true, how: inband(16, 1), ..PLAIN },
            Situation { sizes: [4, 34, 8, 256], training: true, how: inband(16, 2), ..PLAIN },
            Situation { sizes: [5, 1, 8, 288], layers: 2, state: false, how: inband(4, 1), ..PLAIN },
            Situation { sizes: [3, 18, 8, 32], training: true, how: dsmem(32, 16), ..PLAIN },
            Situation { sizes: [3, 3, 8, 512], how: dsmem(32, 1), ..PLAIN },
            Situation { sizes: [3, 4, 16, 272], ..PLAIN },
            Situation { sizes: [2, 1, 3, 1], ..PLAIN },
            Situation { sizes: [9, 5, 40, 20], lead: 1, ..PLAIN },
            Situation { sizes: [3, 4, 16, 64], projection: 32, batch_first: true, state: false, ..PLAIN },
            Situation { sizes: [1, 2, 3, 5], projection: 5, training: true, lead: 1, ..PLAIN },
            Situation { sizes: [3, 5, 8, 32], dropout: Some(1.0), layers: 2, ..PLAIN },
            Situation { sizes: [3, 4, 8, 32], layers: 3, directions: 2, batch_first: true, ..PLAIN },
            Situation { sizes: [5, 3, 8, 16], layers: 3, training: true, how: STEPWISE, ..PLAIN },
        ]);
    }
    all
}

pub(super) fn trainings(scope: Scope) -> Vec<Situation> {
    let plain = Situation { training: true, ..PLAIN };
    let mut all = vec![
        plain,
        Situation { sizes: [3, 3, 7, 11], state: false, biases: Biases::One, ..plain },
        Situation { sizes: [4, 4, 8, 16], lengths: true, layers: 2, directions: 2, ..plain },
        Situation { sizes: [2, 0, 4, 8], ..plain },
        Situation { sizes: [1, 3, 8, 16], is_cell: true, ..plain },
        Situation { sizes: [1, 2, 5, 7], is_cell: true, biases: Biases::Absent, lead: 1, ..plain },
        Situation { sizes: [4, 5, 7, 11], projection: 6, lengths: true, layers: 2, directions: 2, ..plain },
        Situation { sizes: [5, 3, 7, 11], dropout: Some(0.3), layers: 3, directions: 2, ..plain },
        Situation { sizes: [3, 5, 8, 128], lengths: true, how: flagged(16, 1), ..plain },
        Situation { sizes: [3, 10, 8, 64], how: flagged(16, 2), ..plain },
        Situation { sizes: [3, 6, 8, 32], lengths: true, how: ll(16, 2), ..plain },
        Situation { sizes: [4, 3, 8, 64], lengths: true, how: dsmem(8, 2), ..plain },
    ];
    if scope == Scope::Full {
        all.extend([
            Situation { sizes: [20, 3, 16, 32], ..plain },
            Situation { sizes: [LONG, 1, 4, 16], ..plain },
            Situation { sizes: [4, 9, 16, 48], batch_first: true, ..plain },
            Situation { sizes: [4, 5, 7, 11], lengths: true, directions: 2, batch_first: true, ..plain },
            Situation { sizes: [3, 2, 5, 20], layers: 3, biases: Biases::Absent, lead: 1, ..plain },
            Situation { sizes: [1, 2, 8, 16], ..plain },
            Situation { sizes: [70, 33, 3, 8], state: false, ..plain },
            Situation { sizes: [3, 4, 16, 64], projection: 32, batch_first: true, state: false, ..plain },
            Situation { sizes: [1, 2, 3, 5], projection: 5, biases: Biases::One, lead: 1, ..plain },
            Situation { sizes: [3, 5, 8, 32], dropout: Some(0.6), layers: 2, batch_first: true, ..plain },
            Situation { sizes: [2, 18, 16, 128], how: flagged(16, 1), ..plain },
            Situation { sizes: [3, 9, 16, 32], lengths: true, how: ll(16, 1), ..plain },
            Situation { sizes: [3, 9, 8, 256], lengths: true, how: dsmem(32, 8), ..plain },
            Situation { sizes: [3, 18, 8, 32], lengths: true, how: dsmem(32, 16), ..plain },
            Situation { sizes: [3, 2, 8, 512], how: dsmem(32, 1), ..plain },
        ]);
    }
    all
}

/// Nets of `f32` whose factors are rounded to `tf32`.
pub(super) fn rounded() -> Vec<Situation> {
    let plain = Situation { precision: Precision::Tf32, training: true, ..PLAIN };
    vec![
        Situation { training: false, ..plain },
        Situation { sizes: [4, 5, 12, 20], lengths: true, layers: 2, directions: 2, how: STEPWISE, ..plain },
        Situation { sizes: [3, 6, 7, 11], batch_first: true, biases: Biases::One, lead: 1, ..plain },
        Situation { sizes: [1, 9, 8, 16], state: false, ..plain },
        Situation { sizes: [3, 5, 8, 24], projection: 12, dropout: Some(0.3), layers: 2, ..plain },
        Situation { sizes: [3, 5, 8, 64], lengths: true, how: flagged(16, 1), ..plain },
        Situation { sizes: [2, 18, 8, 128], how: flagged(8, 1), ..plain },
        Situation { sizes: [3, 4, 8, 64], how: dsmem(8, 2), ..plain },
        Situation { sizes: [7, 5, 8, 32], lengths: true, how: inband(16, 1), ..plain },
        Situation { sizes: [3, 12, 8, 64], training: false, how: inband(8, 2), ..plain },
        Situation { sizes: [5, 18, 8, 96], directions: 2, state: false, how: inband(16, 2), ..plain },
    ]
}

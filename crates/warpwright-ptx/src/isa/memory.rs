//! Rows of loads, stores, atomics and their cache hints.

use super::arith::{BITS, INTEGERS, INTEGERS_32};
use super::set::{Form, ModifierSet, Requirement, Row, TypeSet};
use crate::inst::{AtomOp, BulkOp, CacheHints, ReduxOp};
use crate::types::ScalarType::*;
use crate::types::{CacheOp, L1Eviction, L2Eviction, L2Prefetch, Scope, Semantics, StateSpace};

/// Types of `ld` and `st`.
pub const LOAD_STORE: &[Form] = &[
    Form::of(BITS.or(INTEGERS).or(TypeSet::of(&[B8, U8, S8, F32, F64]))),
    Form::of(TypeSet::of(&[B128])).since(8, 3, 70),
];

/// One row per [`AtomOp`], in order.
pub const ATOM: &[Row<AtomOp>] = &[
    Row {
        op: AtomOp::Add,
        forms: &[
            Form::of(TypeSet::of(&[U32, S32, U64, F32])),
            Form::of(TypeSet::of(&[F64])).since(5, 0, 60),
            Form::of(TypeSet::of(&[F16x2])).since(6, 2, 60),
            Form::of(TypeSet::of(&[F16])).since(6, 3, 70),
            Form::of(TypeSet::of(&[BF16, BF16x2])).since(7, 8, 90),
        ],
    },
    Row { op: AtomOp::Min, forms: ATOM_MIN_MAX },
    Row { op: AtomOp::Max, forms: ATOM_MIN_MAX },
    Row { op: AtomOp::Inc, forms: &[Form::of(TypeSet::of(&[U32]))] },
    Row { op: AtomOp::Dec, forms: &[Form::of(TypeSet::of(&[U32]))] },
    Row { op: AtomOp::And, forms: ATOM_LOGIC },
    Row { op: AtomOp::Or, forms: ATOM_LOGIC },
    Row { op: AtomOp::Xor, forms: ATOM_LOGIC },
    Row { op: AtomOp::Exch, forms: &[Form::of(TypeSet::of(&[B32, B64])), ATOM_128] },
    Row {
        op: AtomOp::Cas,
        forms: &[Form::of(TypeSet::of(&[B32, B64])), Form::of(TypeSet::of(&[B16])).since(6, 3, 70), ATOM_128],
    },
];

/// Vector `atom` and `red`: operators and types with the vector widths.
pub const ATOM_VECTOR: &[(AtomOp, TypeSet, &[usize])] = &[
    (AtomOp::Add, TypeSet::of(&[F32]), &[2, 4]),
    (AtomOp::Add, TypeSet::of(&[F16, BF16]), &[2, 4, 8]),
    (AtomOp::Add, TypeSet::of(&[F16x2, BF16x2]), &[2, 4]),
    (AtomOp::Min, TypeSet::of(&[F16, BF16]), &[2, 4, 8]),
    (AtomOp::Min, TypeSet::of(&[F16x2, BF16x2]), &[2, 4]),
    (AtomOp::Max, TypeSet::of(&[F16, BF16]), &[2, 4, 8]),
    (AtomOp::Max, TypeSet::of(&[F16x2, BF16x2]), &[2, 4]),
];
/// Requirement of every vector `atom` and `red`.
pub(super) const ATOM_VECTOR_NEEDS: Requirement = Requirement::new(8, 1, 90);

/// `cp.reduce.async.bulk` into global memory and into shared memory of the cluster: types of each operator.
pub const BULK_REDUCE: &[(BulkOp, TypeSet, TypeSet)] = &[
    (BulkOp::Add, TypeSet::of(&[U32, S32, U64, F16, BF16, F32, F64]), TypeSet::of(&[U32, S32, U64])),
    (BulkOp::Min, BULK_MIN_MAX, INTEGERS_32),
    (BulkOp::Max, BULK_MIN_MAX, INTEGERS_32),
    (BulkOp::Inc, TypeSet::of(&[U32]), TypeSet::of(&[U32])),
    (BulkOp::Dec, TypeSet::of(&[U32]), TypeSet::of(&[U32])),
    (BulkOp::And, TypeSet::of(&[B32, B64]), TypeSet::of(&[B32])),
    (BulkOp::Or, TypeSet::of(&[B32, B64]), TypeSet::of(&[B32])),
    (BulkOp::Xor, TypeSet::of(&[B32, B64]), TypeSet::of(&[B32])),
];
const BULK_MIN_MAX: TypeSet = TypeSet::of(&[U32, S32, U64, S64, F16, BF16]);

/// `red.async` that an mbarrier counts: types of each operator.
pub const RED_ASYNC: &[(AtomOp, TypeSet)] = &[
    (AtomOp::Add, TypeSet::of(&[U32, S32, U64, S64])),
    (AtomOp::Min, INTEGERS_32),
    (AtomOp::Max, INTEGERS_32),
    (AtomOp::Inc, TypeSet::of(&[U32])),
    (AtomOp::Dec, TypeSet::of(&[U32])),
    (AtomOp::And, TypeSet::of(&[B32])),
    (AtomOp::Or, TypeSet::of(&[B32])),
    (AtomOp::Xor, TypeSet::of(&[B32])),
];
/// Types of `st.async`.
pub const ST_ASYNC: TypeSet = TypeSet::of(&[B32, B64, U32, U64, S32, S64, F32, F64]);
/// Types of `ldu`.
pub const LOAD_UNIFORM: Form = Form::of(BITS.or(INTEGERS).or(TypeSet::of(&[B8, U8, S8, F32, F64])));

const ATOM_MIN_MAX: &[Form] = &[Form::of(TypeSet::of(&[U32, S32, U64, S64]))];
const ATOM_LOGIC: &[Form] = &[Form::of(TypeSet::of(&[B32, B64]))];
const ATOM_128: Form = Form::of(TypeSet::of(&[B128])).since(8, 3, 90);

/// One row per [`ReduxOp`], in order.
pub const REDUX: &[Row<ReduxOp>] = &[
    Row { op: ReduxOp::Add, forms: REDUX_INTEGER },
    Row { op: ReduxOp::Min, forms: REDUX_MIN_MAX },
    Row { op: ReduxOp::Max, forms: REDUX_MIN_MAX },
    Row { op: ReduxOp::And, forms: REDUX_LOGIC },
    Row { op: ReduxOp::Or, forms: REDUX_LOGIC },
    Row { op: ReduxOp::Xor, forms: REDUX_LOGIC },
];

const REDUX_INTEGER: &[Form] = &[Form::of(TypeSet::of(&[U32, S32])).since(7, 0, 80)];
/// Of floats `.NaN` and `.abs` may be asked for.
const REDUX_MIN_MAX: &[Form] = &[
    Form::of(TypeSet::of(&[U32, S32])).since(7, 0, 80),
    Form::of(TypeSet::of(&[F32])).allow(ModifierSet::NAN).only(8, 6, &[100, 101, 103]),
];
const REDUX_LOGIC: &[Form] = &[Form::of(TypeSet::of(&[B32])).since(7, 0, 80)];

/// Requirement of the cache hints of a load or store.
pub(super) fn hints(h: &CacheHints) -> Requirement {
    let op = match h.op {
        CacheOp::Default
        | CacheOp::Ca
        | CacheOp::Cg
        | CacheOp::Cs
        | CacheOp::Lu
        | CacheOp::Cv
        | CacheOp::Wb
        | CacheOp::Wt => Requirement::BASE,
    };
    let l1 = match h.l1 {
        L1Eviction::Default => Requirement::BASE,
        L1Eviction::Normal
        | L1Eviction::Unchanged
        | L1Eviction::First
        | L1Eviction::Last
        | L1Eviction::NoAllocate => Requirement::new(7, 4, 70),
    };
    let l2_eviction =
        if h.l2 == L2Eviction::Default { Requirement::BASE } else { Requirement::new(8, 8, 100) };
    let l2 = match h.l2_prefetch {
        L2Prefetch::Default => Requirement::BASE,
        L2Prefetch::B64 | L2Prefetch::B128 => Requirement::new(7, 4, 75),
        L2Prefetch::B256 => Requirement::new(7, 4, 80),
    };
    let policy = if h.policy.is_some() { Requirement::new(7, 4, 80) } else { Requirement::BASE };
    op.and(l1).and(l2_eviction).and(l2).and(policy)
}

/// Requirement of a memory order.
pub(super) const fn semantics(s: Semantics) -> Requirement {
    match s {
        Semantics::Weak | Semantics::Volatile => Requirement::BASE,
        Semantics::Relaxed | Semantics::Acquire | Semantics::Release | Semantics::AcqRel => {
            Requirement::new(6, 0, 70)
        }
        Semantics::Mmio => Requirement::new(8, 2, 70),
    }
}

/// Requirement of a scope.
pub(super) const fn scope(s: Scope) -> Requirement {
    match s {
        Scope::Cta | Scope::Gpu | Scope::Sys => Requirement::BASE,
        Scope::Cluster => Requirement::new(7, 8, 90),
    }
}

/// Requirement of a state space.
pub(super) const fn space(s: StateSpace) -> Requirement {
    match s {
        StateSpace::Generic
        | StateSpace::Global
        | StateSpace::Shared
        | StateSpace::Local
        | StateSpace::Param
        | StateSpace::Const => Requirement::BASE,
        StateSpace::SharedCluster => Requirement::new(7, 8, 90),
    }
}

/// Requirement of a vector of `width` elements of `bits` each; `None` if there is none.
pub const fn vector(width: usize, bits: u32) -> Option<Requirement> {
    match (width, bits) {
        (1, _) => Some(Requirement::BASE),
        (2, 8 | 16 | 32 | 64) | (4, 8 | 16 | 32) => Some(Requirement::BASE),
        (4, 64) | (8, 32) => Some(Requirement::new(8, 8, 100)),
        _ => None,
    }
}

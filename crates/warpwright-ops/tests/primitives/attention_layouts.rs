//! Attention on warpgroups: which layouts the plans choose, and which they refuse.

use warpwright_ops::attention::tuning::{self, Wgmma, WgmmaFused, WgmmaSweep, WgmmaSweeps};
use warpwright_ops::attention::{
    Algorithm, AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm,
};
use warpwright_ops::plan::{Layout, Real};
use warpwright_ops::{Operation, PlanError};
use warpwright_ptx::{DType, Target};

use crate::attention::{TARGET, backward_of, layout, of_halves};

#[test]
fn warpgroups_take_what_tensor_copies_reach() {
    let takes = |desc: &AttentionDesc, target: Target| {
        let plan = desc.plan(target).expect("plan");
        let names: Vec<&str> = plan.steps().iter().map(|step| step.kernel().name()).collect();
        names.iter().any(|name| name.starts_with("attention_bf16_wg"))
    };
    for width in [8, 40, 64, 72, 128, 200, 256] {
        assert!(takes(&of_halves(width), TARGET), "{width}");
    }
    assert!(!takes(&of_halves(64), Target::sm(80)));
    assert!(!takes(&of_halves(64), Target::sm(100)));
    let mut desc = of_halves(64);
    // [batch, heads, sequence, head_dim]
    desc.q.strides = [64 * 4 * 64, 64, 64 * 64, 1];
    assert!(takes(&desc, TARGET));
    // One head for all, and rows from the last one on.
    let mut same = of_halves(64);
    same.k.strides[2] = 0;
    assert!(!takes(&same, TARGET));
    let mut reversed = of_halves(64);
    reversed.v.strides[1] = -reversed.v.strides[1];
    assert!(!takes(&reversed, TARGET));
    let mut apart = of_halves(64);
    apart.k.strides = [81 * 132, 132, 64, 1];
    assert!(!takes(&apart, TARGET), "rows begin at multiples of 8 bytes");
    let dropped = AttentionOptions { dropout: Some(Real::new(0.5)), ..AttentionOptions::default() };
    assert!(!takes(&AttentionDesc { options: dropped, ..of_halves(64) }, TARGET));
    assert!(!takes(&AttentionDesc { dtype: DType::F32, ..of_halves(64) }, TARGET));
    assert!(!takes(&AttentionDesc { k: layout(0, 2, 64), v: layout(0, 2, 64), ..of_halves(64) }, TARGET));

    let refused = |desc: &AttentionDesc, target, layout| match desc
        .plan_with(target, Algorithm::Wgmma { layout, blocks: None })
    {
        Err(PlanError::Parameter { parameter: "layout", .. }) => {}
        other => panic!("{other:?}"),
    };
    let layout = tuning::wgmma_layouts([64; 2])[0];
    assert!(of_halves(64).plan_with(TARGET, Algorithm::Wgmma { layout, blocks: None }).is_ok());
    refused(&of_halves(128), TARGET, layout);
    refused(&same, TARGET, layout);
    refused(&of_halves(64), Target::sm(80), layout);
    for wrong in [
        Wgmma { groups: 0, ..layout },
        Wgmma { groups: 4, ..layout },
        Wgmma { columns: 40, ..layout },
        Wgmma { columns: 512, ..layout },
        Wgmma { width: 72, ..layout },
        Wgmma { width: 0, ..layout },
        Wgmma { value_width: 72, ..layout },
        Wgmma { value_width: 48, ..layout },
        Wgmma { value_width: 272, stages: 1, columns: 64, ..layout },
        Wgmma { stages: 0, ..layout },
        Wgmma { stages: 9, ..layout },
        Wgmma { width: 256, stages: 4, ..layout },
    ] {
        refused(&of_halves(64), TARGET, wrong);
    }
}

/// Of each head dimension, of queries and of values, the one that its kernels are compiled for: forward, in one sweep and in several.
#[test]
fn head_dimensions_between_have_kernels_of_their_own() {
    let desc = |[width, value_width]: [usize; 2], queries| {
        let of = |rows, width| Layout::contiguous([1, rows, 4, width]);
        let (q, v) = (of(queries, width), of(600, value_width));
        let o = of(queries, value_width);
        AttentionDesc { q, k: of(600, width), v, o, ..of_halves(64) }
    };
    let backward = |widths, queries| {
        let forward = desc(widths, queries);
        let AttentionDesc { q, k, v, o, .. } = forward;
        AttentionBackwardDesc { forward, dy: o, dq: q, dk: k, dv: v, dbias: false, dsinks: false }
    };
    let has = |names: Vec<String>, part: &str, of: &str| {
        let name = names.iter().find(|name| name.contains(part)).unwrap_or_else(|| panic!("{names:?}"));
        let (_, behind) = name.split_once(of).unwrap_or_else(|| panic!("{name} for {of}"));
        assert!(!behind.starts_with(|c: char| c == 'v' || c.is_ascii_digit()), "{name} for {of}");
    };
    for (widths, forward) in [
        ([64, 64], "d64"),
        ([72, 8], "d80"),
        ([80, 80], "d80"),
        ([8, 88], "d96"),
        ([96, 64], "d96"),
        ([112, 104], "d112"),
        ([120, 120], "d128"),
        ([136, 160], "d160"),
        ([192, 128], "d192v128"),
        ([168, 64], "d192v128"),
        ([192, 136], "d192"),
        ([128, 192], "d192"),
        ([200, 8], "d256"),
    ] {
        let names = |plan: warpwright_ops::Plan<AttentionDesc>| -> Vec<String> {
            plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect()
        };
        has(names(desc(widths, 600).plan(TARGET).expect("plan")), "attention_bf16_wg", forward);
        let names = |queries| -> Vec<String> {
            let plan = backward(widths, queries).plan(TARGET).expect("plan");
            plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect()
        };
        if widths.into_iter().all(|width| width <= 128) {
            has(names(512), "bf16_wgfused", forward);
        } else {
            has(names(512), "attention_backward_q_bf16_wg", forward);
            assert_eq!(
                names(512).iter().any(|name| name.contains("_kv_")),
                matches!(forward, "d160" | "d192v128")
            );
        }
    }
}

#[test]
fn layouts_of_sweeps_are_checked() {
    let takes = |desc: AttentionDesc, target: Target| {
        let plan = backward_of(desc).plan(target).expect("plan");
        plan.steps().iter().any(|step| step.kernel().name().starts_with("attention_backward_q_bf16_wg"))
    };
    for width in [8, 40, 64, 72, 128] {
        assert!(takes(of_halves(width), TARGET), "{width}");
    }
    assert!(!takes(of_halves(64), Target::sm(80)));
    assert!(!takes(of_halves(64), Target::sm(100)));
    let options = AttentionOptions { softcap: Some(Real::new(2.0)), ..AttentionOptions::default() };
    assert!(!takes(AttentionDesc { options, ..of_halves(64) }, TARGET));
    let of = |columns, tiles, width| WgmmaSweep {
        groups: 2,
        columns,
        tiles,
        width,
        value_width: width,
        held: false,
    };
    let plan = |queries| {
        let sweeps = WgmmaSweeps { queries, keys: of(64, 6, 64), values: None };
        backward_of(of_halves(64)).plan_with(TARGET, BackwardAlgorithm::Wgmma(sweeps)).map(|_| ())
    };
    plan(of(64, 6, 64)).expect("fits");
    for wrong in [
        of(40, 6, 64),
        of(0, 6, 64),
        of(256, 6, 64),
        of(64, 3, 64),
        of(64, 60, 64),
        of(64, 6, 72),
        of(64, 6, 0),
        WgmmaSweep { value_width: 48, ..of(64, 6, 64) },
        WgmmaSweep { value_width: 264, ..of(16, 4, 64) },
        WgmmaSweep { groups: 0, ..of(64, 6, 64) },
        WgmmaSweep { groups: 4, ..of(64, 6, 64) },
    ] {
        assert!(matches!(plan(wrong), Err(PlanError::Parameter { parameter: "sweeps", .. })), "{wrong:?}");
    }
}

/// The layout by number of queries and target, and what `plan_with` says of layouts and heads side by side that there are not.
#[test]
fn layouts_of_one_sweep_are_checked() {
    let of_queries = |queries: usize, width: usize| {
        let q = Layout::contiguous([1, queries, 4, width]);
        backward_of(AttentionDesc { q, k: q, v: q, o: q, ..of_halves(width) })
    };
    let takes = |desc: &AttentionBackwardDesc, target: Target| {
        let plan = desc.plan(target).expect("plan");
        plan.steps().iter().any(|step| step.kernel().name().starts_with("attention_backward_bf16_wgfused"))
    };
    for width in [8, 64, 96, 128] {
        assert!(takes(&of_queries(512, width), TARGET), "{width}");
        assert!(!takes(&of_queries(511, width), TARGET), "{width}");
    }
    assert!(!takes(&of_queries(512, 136), TARGET));
    assert!(!takes(&of_queries(512, 64), Target::sm(80)));
    assert!(!takes(&of_queries(512, 64), Target::sm(100)));

    let right = WgmmaFused { columns: 64, tiles: 4, width: 64, ahead: false };
    let plan = |desc: &AttentionBackwardDesc, target, layout, heads_at_once| {
        desc.plan_with(target, BackwardAlgorithm::WgmmaFused { layout, heads_at_once }).map(|_| ())
    };
    let desc = of_queries(70, 64);
    for heads in [None, Some(1), Some(2), Some(4)] {
        plan(&desc, TARGET, right, heads).expect("fits");
    }
    for wrong in [0, 3, 8] {
        let refused = plan(&desc, TARGET, right, Some(wrong));
        assert!(matches!(refused, Err(PlanError::Parameter { parameter: "heads_at_once", .. })), "{wrong}");
    }
    let refused = |desc: &AttentionBackwardDesc, target, layout| {
        let refused = plan(desc, target, layout, None);
        assert!(matches!(refused, Err(PlanError::Parameter { parameter: "layout", .. })), "{layout:?}");
    };
    for wrong in [
        WgmmaFused { columns: 0, ..right },
        WgmmaFused { columns: 48, ..right },
        WgmmaFused { columns: 160, ..right },
        WgmmaFused { tiles: 1, ..right },
        WgmmaFused { tiles: 2, ahead: true, ..right },
        WgmmaFused { tiles: 60, ..right },
        WgmmaFused { width: 0, ..right },
        WgmmaFused { width: 48, ..right },
        WgmmaFused { width: 72, ..right },
        WgmmaFused { columns: 88, width: 96, ..right },
        WgmmaFused { width: 144, ..right },
        WgmmaFused { width: 256, ..right },
    ] {
        refused(&desc, TARGET, wrong);
    }
    refused(&of_queries(70, 72), TARGET, right);
    refused(&of_queries(0, 64), TARGET, right);
    refused(&desc, Target::sm(80), right);
    let options = AttentionOptions { softcap: Some(Real::new(2.0)), ..AttentionOptions::default() };
    refused(&backward_of(AttentionDesc { options, ..of_halves(64) }), TARGET, right);
}

/// As many heads side by side as have a block for each multiprocessor, whatever divides their number.
#[test]
fn heads_stand_side_by_side_by_their_length() {
    let of = |heads, sequence, width| tuning::heads_at_once(heads, 1, [sequence; 2], width);
    assert_eq!([512, 1024, 4096, 16384].map(|sequence| of(16, sequence, 128)), [16, 16, 4, 1]);
    assert_eq!([512, 1024, 4096, 16384].map(|sequence| of(32, sequence, 64)), [32, 32, 32, 8]);
    assert_eq!([1, 3, 6, 12, 0].map(|heads| of(heads, 4096, 128)), [1, 1, 2, 4, 4]);
    // Queries of a head that are many times its keys, and nothing at all.
    assert_eq!(tuning::heads_at_once(16, 8, [1 << 16, 512], 128), 1);
    assert_eq!(tuning::heads_at_once(16, u32::MAX, [u32::MAX, 0], 128), 1);
}

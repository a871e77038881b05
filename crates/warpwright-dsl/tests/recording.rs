//! Refusals of recording, with the Rust line, and the locations that it writes down.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Issue, IssueKind, record_module};
use warpwright_ptx::{Inst, PtxVersion, ScalarType, SourceLoc, StateSpace};

kernel_args! {
    /// `y = f(x)`
    struct MapArgs => MapParams { x: In<Elem>, y: Out<Elem>, n: u64 }
}

/// A kernel whose parts the tests vary.
struct Draft<F> {
    name: &'static str,
    block: BlockDim,
    dtypes: DTypes,
    build: F,
}

impl<F: for<'k> Fn(K<'k>, MapParams<'k>)> KernelDef for Draft<F> {
    type Args = MapArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.name, self.block).dtypes(self.dtypes.clone())
    }

    fn build<'k>(&self, k: K<'k>, a: MapParams<'k>) {
        (self.build)(k, a);
    }
}

fn draft<F: for<'k> Fn(K<'k>, MapParams<'k>)>(build: F) -> Draft<F> {
    Draft { name: "draft", block: BlockDim::x(128), dtypes: DTypes::all(DType::F32), build }
}

const SM: Target = Target::sm(80);

fn issues<F: for<'k> Fn(K<'k>, MapParams<'k>)>(draft: &Draft<F>) -> Vec<Issue> {
    match record(draft, SM) {
        Err(BuildError::Issues { issues, .. }) => issues,
        other => panic!("expected issues, got {other:?}"),
    }
}

fn kinds<F: for<'k> Fn(K<'k>, MapParams<'k>)>(draft: &Draft<F>) -> Vec<IssueKind> {
    issues(draft).into_iter().map(|issue| issue.kind).collect()
}

fn copy<'k>(k: K<'k>, a: MapParams<'k>) {
    elementwise(k, a.n, 4, |i, w| a.y.at(i).store(a.x.at(i).load::<f32>(w)));
}

#[test]
fn equal_definitions_record_equal_text_in_the_lowest_version() {
    let (first, second) = (record(&draft(copy), SM), record(&draft(copy), SM));
    let (first, second) = (first.expect("a kernel"), second.expect("a kernel"));
    assert_eq!(first.text(), second.text());
    assert_eq!(first.module().version, PtxVersion::new(7, 0), "sm_80 exists from PTX 7.0");
    let old = record(&draft(copy), Target::sm(75)).expect("a kernel");
    assert_eq!(old.module().version, PtxVersion::new(6, 3));
    assert_eq!(first.block(), Some([128, 1, 1]));
}

#[test]
fn whole_vectors_take_one_instruction_of_sixteen_bytes() {
    let module = record_module(&draft(copy), SM).expect("a module");
    let widths = |store: bool| -> Vec<usize> {
        let all = module.functions[0].blocks.iter().flat_map(|b| &b.instructions);
        all.filter_map(|i| match &i.inst {
            Inst::Ld { space: StateSpace::Global, dsts, .. } if !store => Some(dsts.len()),
            Inst::St { space: StateSpace::Global, srcs, .. } if store => Some(srcs.len()),
            _ => None,
        })
        .collect()
    };
    assert_eq!(widths(false), [4, 1], "a vector, and an element of the tail");
    assert_eq!(widths(true), [4, 1]);
}

#[test]
fn instructions_know_the_line_that_recorded_them() {
    let line = std::cell::Cell::new(0);
    let draft = draft(|_, a| {
        line.set(line!() + 1);
        let y = a.x.at(0).get::<f32>().exp();
        a.y.at(0).set(y);
    });
    let module = record_module(&draft, SM).expect("a module");
    let mut here = 0;
    for block in &module.functions[0].blocks {
        for (index, instruction) in block.instructions.iter().enumerate() {
            let SourceLoc::Rust(at) = block.location(index) else { panic!("{instruction:?} has no line") };
            assert!(
                at.file().ends_with("recording.rs") || at.file().ends_with("args.rs"),
                "{at} of {instruction:?}"
            );
            here += usize::from(at.file().ends_with("recording.rs") && at.line() == line.get());
        }
    }
    // The body of `exp` counts as the line that asked for it.
    assert!(here > 15, "{here} instructions on line {}", line.get());
}

#[test]
fn a_kernel_that_writes_nothing_is_refused() {
    let idle = draft(|_, a| assert_eq!(a.x.at(0).load::<f32>(1).len(), 1));
    assert_eq!(kinds(&idle), [IssueKind::NoStore]);
    let only_shared = draft(|k, _| k.shared::<f32>(4).at(0).set(1.0));
    assert_eq!(kinds(&only_shared), [IssueKind::NoStore]);
}

#[test]
fn declarations_are_checked() {
    let unnamed = Draft { name: "4th", ..draft(copy) };
    assert_eq!(kinds(&unnamed), [IssueKind::Name { name: "4th".to_owned() }]);
    let wide = Draft { block: BlockDim::xy(64, 32), ..draft(copy) };
    assert_eq!(kinds(&wide), [IssueKind::Block { dim: [64, 32, 1] }]);
    let empty = Draft { block: BlockDim::x(0), ..draft(copy) };
    assert_eq!(kinds(&empty), [IssueKind::Block { dim: [0, 1, 1] }]);
    let overflowing = Draft { block: BlockDim { x: 1 << 16, y: 1 << 16, z: 1 }, ..draft(copy) };
    assert_eq!(kinds(&overflowing), [IssueKind::Block { dim: [1 << 16, 1 << 16, 1] }]);
    let untyped = Draft { dtypes: DTypes::NONE.with("x", DType::F32), ..draft(copy) };
    assert_eq!(kinds(&untyped), [IssueKind::NoDType { argument: "y".to_owned() }]);
    let unknown = Draft { dtypes: DTypes::all(DType::F32).with("n", DType::F32), ..draft(copy) };
    assert_eq!(kinds(&unknown), [IssueKind::UnknownDType { argument: "n".to_owned() }]);
}

#[test]
fn accesses_are_checked_with_their_line() {
    let line = line!() + 1;
    let narrow = Draft {
        dtypes: DTypes::all(DType::F64),
        ..draft(|k, a| elementwise(k, a.n, 1, |i, w| a.y.at(i).store(a.x.at(i).load::<f32>(w))))
    };
    let found = issues(&narrow);
    assert!(
        found.iter().all(|i| i.kind == IssueKind::Access { dtype: DType::F64, register: ScalarType::F32 })
    );
    assert!(found[0].location.file().ends_with("recording.rs"));
    assert!(found[0].location.line() >= line && found[0].location.line() <= line + 10);

    let integers = Draft { dtypes: DTypes::all(DType::U8), ..draft(copy) };
    assert!(kinds(&integers).contains(&IssueKind::Access { dtype: DType::U8, register: ScalarType::F32 }));
    let three = draft(|_, a| a.y.at(0).store(a.x.at(0).load::<f32>(3)));
    assert!(kinds(&three).contains(&IssueKind::Width { width: 3 }));
    let none = draft(|_, a| a.y.at(0).store(Lanes::<f32>::from(vec![])));
    assert_eq!(kinds(&none), [IssueKind::Width { width: 0 }]);
    let divided = draft(|k, a| elementwise(k, a.n, 3, |i, _| a.y.at(i.div_exact(2)).set::<f32>(0.0)));
    assert_eq!(kinds(&divided), [IssueKind::InexactIndex { divisor: 2 }]);
}

#[test]
fn shapes_of_the_arms_must_agree() {
    let uneven = draft(|k, a| {
        let x = a.x.at(0).load::<f32>(4);
        let halves = k.if_else(a.n.gt(9), || x.clone(), || Lanes::from(vec![x[0], x[1]]));
        a.y.at(0).store(halves);
    });
    assert_eq!(kinds(&uneven), [IssueKind::Shape { what: "if_else", left: 4, right: 2 }]);
}

#[test]
fn collectives_need_whole_warps() {
    let partial = Draft {
        block: BlockDim::x(40),
        ..draft(|k, a| a.y.at(0).set(block_reduce(k, Sum, a.x.at(0).get::<f32>())))
    };
    assert_eq!(kinds(&partial), [IssueKind::PartialWarp { what: "block_reduce", threads: 40 }]);
}

#[test]
fn a_host_loop_that_unrolls_without_end_is_refused() {
    let unrolled = draft(|_, a| {
        let x = a.x.at(0).get::<f32>();
        a.y.at(0).set((0..60_000).fold(x, |sum, _| sum + x));
    });
    assert_eq!(kinds(&unrolled), [IssueKind::Budget { limit: 50_000 }]);
}

#[test]
fn a_register_of_one_arm_cannot_leave_it() {
    let smuggled = draft(|k, a| {
        let mut outside = None;
        k.if_(a.n.gt(5), || outside = Some(a.x.at(0).get::<f32>()));
        if let Some(x) = outside {
            a.y.at(0).set(x);
        }
    });
    let Err(BuildError::Rejected { kernel, source }) = record(&smuggled, SM) else {
        panic!("a register that is undefined on one path was accepted");
    };
    assert_eq!(kernel, "draft");
    assert!(source.to_string().contains("V-DEF"), "{source}");
}

#[test]
fn messages_name_file_line_and_remedy() {
    let untyped = Draft { dtypes: DTypes::NONE, ..draft(copy) };
    let text = record(&untyped, SM).expect_err("no dtypes").to_string();
    assert!(text.starts_with("kernel `draft` cannot be built:"), "{text}");
    assert!(text.contains("recording.rs:") || text.contains("args.rs:"), "{text}");
    assert!(text.contains("argument `x` has no dtype; name it in `KernelSpec::dtypes`"), "{text}");
}

#[test]
fn grids_cover_every_element_or_say_that_they_cannot() {
    assert_eq!(elementwise_grid(0, 256, 4), Some([1, 1, 1]));
    assert_eq!(elementwise_grid(1024, 256, 4), Some([1, 1, 1]));
    assert_eq!(elementwise_grid(1025, 256, 4), Some([2, 1, 1]));
    assert_eq!(elementwise_grid(5_000_000_000, 256, 4), Some([4_882_813, 1, 1]));
    assert_eq!(elementwise_grid(u64::MAX, 256, 4), None);
    assert_eq!(elementwise_grid(10, 0, 4), None);
}

#[test]
fn arguments_are_passed_in_order_with_their_types() {
    use warpwright_ptx::{ArgValue, pack_args};
    let kernel = record(&draft(copy), SM).expect("a kernel");
    let args = MapArgs { x: In::address(0x1000), y: Out::slot_at(3, 64), n: 9 };
    let mut values = args.values();
    assert_eq!(values[1], ArgValue::Slot { slot: 3, offset: 64 });
    values[1] = ArgValue::Address(0x2000);
    let packed = pack_args(kernel.function(), &values).expect("arguments that fit");
    let words: Vec<u64> =
        packed.chunks(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    assert_eq!(words, [0x1000, 0x2000, 9]);
}

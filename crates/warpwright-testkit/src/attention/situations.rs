//! The problems that attention is tested with.

use warpwright_ops::attention::{AlibiSlopes, CacheScale};

use super::situation::{Modification, PLAIN, Pattern, Rows, Situation, Sizes, Unit};
use crate::case::Scope;

/// Those of a scope.
pub(super) fn situations(scope: Scope) -> Vec<Situation> {
    let with = |modification| Situation { modification, ..PLAIN };
    let none = Modification::default();
    let mut all = vec![
        PLAIN,
        Situation { queries: 0, ..PLAIN },
        Situation { keys: 0, ..PLAIN },
        Situation {
            batch: 2,
            queries: 5,
            keys: 3,
            heads: 4,
            key_heads: 2,
            width: 64,
            value_width: 64,
            ..PLAIN
        },
        Situation { queries: 17, keys: 65, width: 40, value_width: 24, lead: 1, rows: Rows::ByHead, ..PLAIN },
        Situation { queries: 66, keys: 40, modification: Modification { causal: true, ..none }, ..PLAIN },
        with(Modification { causal: true, top_left: true, ..none }),
        with(Modification { left: Some(20), right: Some(3), ..none }),
        with(Modification { softcap: Some(1.5), ..none }),
        with(Modification { bias: Some([false; 4]), ..none }),
        with(Modification { alibi: Some(AlibiSlopes::PerHead), causal: true, ..none }),
        Situation {
            batch: 3,
            queries: 9,
            modification: Modification { lengths: true, causal: true, ..none },
            ..PLAIN
        },
        Situation {
            batch: 2,
            modification: Modification {
                causal: true,
                left: Some(30),
                softcap: Some(5.0),
                bias: Some([true, false, false, false]),
                alibi: Some(AlibiSlopes::PerBatchAndHead),
                lengths: true,
                ..none
            },
            ..PLAIN
        },
        Situation {
            batch: 3,
            queries: 70,
            keys: 150,
            width: 64,
            value_width: 64,
            modification: Modification { lengths: true, ..none },
            ..PLAIN
        },
        Situation {
            queries: 150,
            keys: 200,
            heads: 4,
            key_heads: 2,
            width: 96,
            value_width: 64,
            rows: Rows::ByHead,
            modification: Modification { left: Some(70), right: Some(30), ..none },
            ..PLAIN
        },
        Situation { nan: true, modification: Modification { causal: true, ..none }, ..PLAIN },
        Situation { spread: 30.0, ..PLAIN },
        Situation { queries: 20, keys: 37, heads: 1, width: 128, value_width: 128, ..PLAIN },
        Situation { queries: 20, keys: 37, heads: 1, width: 256, value_width: 192, ..PLAIN },
    ];
    all.extend(shared_out());
    all.extend(packed());
    all.extend(dropped());
    all.extend(float8());
    all.extend(of_units());
    all.extend(persistent());
    all.extend(of_copies());
    all.extend(fused());
    all.extend(blocks());
    if scope == Scope::Full {
        for width in [8, 16, 56, 64, 72, 96, 128, 200, 256] {
            let causal = Modification { causal: true, ..none };
            all.push(Situation {
                heads: 1,
                queries: 70,
                keys: 90,
                width,
                value_width: width,
                modification: causal,
                ..PLAIN
            });
        }
        for (queries, keys) in [(1, 1), (1, 200), (130, 1), (64, 64), (128, 128), (129, 257), (200, 63)] {
            for causal in [false, true] {
                let modification = Modification { causal, ..none };
                all.push(Situation {
                    heads: 1,
                    queries,
                    keys,
                    width: 64,
                    value_width: 64,
                    modification,
                    ..PLAIN
                });
            }
        }
        for bits in 1..16 {
            let bias = Some([8, 4, 2, 1].map(|bit| bits & bit != 0));
            all.push(Situation {
                batch: 2,
                queries: 5,
                keys: 9,
                modification: Modification { bias, ..none },
                ..PLAIN
            });
        }
        for (left, right) in [(Some(0), Some(0)), (None, Some(7)), (Some(7), None), (Some(100), Some(100))] {
            for top_left in [false, true] {
                let modification = Modification { left, right, top_left, ..none };
                all.push(Situation { queries: 90, keys: 150, heads: 1, modification, ..PLAIN });
            }
        }
        for lead in [1, 3] {
            all.push(Situation { lead, width: 64, value_width: 64, ..PLAIN });
        }
        all.push(Situation { width: 7, value_width: 13, ..PLAIN });
        all.push(Situation { heads: 6, key_heads: 2, rows: Rows::ByHead, ..PLAIN });
    }
    all
}

/// All modifications that go together, with a window of `left` keys.
fn everything(left: u32) -> Modification {
    Modification {
        causal: true,
        left: Some(left),
        softcap: Some(5.0),
        bias: Some([true, false, false, false]),
        alibi: Some(AlibiSlopes::PerBatchAndHead),
        lengths: true,
        sinks: true,
        ..Modification::default()
    }
}

/// Few queries, whose keys are shared out, and caches.
fn shared_out() -> Vec<Situation> {
    let few =
        Situation { queries: 3, keys: 300, heads: 6, key_heads: 2, width: 64, value_width: 64, ..PLAIN };
    let none = Modification::default();
    let everything = everything(40);
    let with = |modification| Situation { modification, ..few };
    let paged = |rows, more| with(Modification { paged: Some(rows), lengths: true, ..more });
    vec![
        few,
        Situation { queries: 1, keys: 1000, width: 128, value_width: 128, ..few },
        Situation { queries: 1, keys: 70, heads: 4, key_heads: 1, width: 200, value_width: 256, ..few },
        Situation { queries: 5, keys: 3, batch: 2, width: 40, value_width: 24, lead: 1, ..few },
        Situation { batch: 3, keys: 130, ..with(everything) },
        Situation { queries: 16, heads: 12, ..with(Modification { causal: true, ..none }) },
        Situation { batch: 3, ..paged(16, none) },
        Situation { batch: 2, queries: 20, ..paged(64, Modification { causal: true, ..none }) },
        Situation { batch: 3, ..paged(32, everything) },
        Situation { batch: 3, queries: 7, heads: 8, ..paged(16, Modification { causal: true, ..none }) },
        Situation { nan: true, queries: 2, ..with(Modification { causal: true, ..none }) },
        Situation { spread: 30.0, ..few },
        Situation { queries: 40, keys: 70, ..with(Modification { sinks: true, causal: true, ..none }) },
    ]
}

/// Sequences of different lengths, two of them without queries or keys.
fn packed() -> Vec<Situation> {
    let several = Situation { batch: 4, queries: 40, keys: 75, heads: 4, key_heads: 2, ..PLAIN };
    let packed = Modification { packed: true, ..Modification::default() };
    let with = |modification| Situation { modification, ..several };
    vec![
        with(packed),
        Situation { width: 64, value_width: 64, ..with(Modification { causal: true, ..packed }) },
        with(Modification { causal: true, top_left: true, ..packed }),
        Situation {
            width: 128,
            value_width: 72,
            ..with(Modification { left: Some(20), right: Some(3), softcap: Some(5.0), ..packed })
        },
        with(Modification {
            causal: true,
            bias: Some([false, true, false, false]),
            alibi: Some(AlibiSlopes::PerBatchAndHead),
            sinks: true,
            ..packed
        }),
    ]
}

/// Kernels for half types alone. With `wgmma` rings of tiles go round, blocks have queries behind the last one, and whole tiles of
/// keys behind a mask.
fn of_units() -> Vec<Situation> {
    let none = Modification::default();
    let causal = Modification { causal: true, ..none };
    let everything = everything(30);
    let groups = |[queries, keys, width, value_width]: [usize; 4], modification| Situation {
        heads: 1,
        queries,
        keys,
        width,
        value_width,
        modification,
        unit: Unit::Wgmma,
        ..PLAIN
    };
    let warps = |width, modification| Situation {
        batch: 2,
        queries: 70,
        width,
        value_width: width,
        modification,
        unit: Unit::Warps,
        ..PLAIN
    };
    let lengths = Modification { lengths: true, ..none };
    let few = |unit, width, modification| Situation {
        batch: 3,
        queries: 2,
        keys: 600,
        heads: 6,
        key_heads: 2,
        width,
        value_width: width,
        modification,
        unit,
        ..PLAIN
    };
    vec![
        few(Unit::Warps, 64, Modification { left: Some(400), ..everything }),
        few(Unit::Warps, 128, none),
        few(Unit::Parts, 64, Modification { left: Some(400), ..everything }),
        few(Unit::Parts, 128, lengths),
        few(Unit::Parts, 256, none),
        // Rows that read the same keys: 27, 48, 128, 160 and 20, which two, four and eight warps share.
        Situation { queries: 9, ..few(Unit::Parts, 64, Modification { left: Some(400), ..everything }) },
        Situation { queries: 16, ..few(Unit::Parts, 128, Modification { causal: true, ..lengths }) },
        Situation {
            queries: 16,
            heads: 16,
            ..few(Unit::Parts, 128, Modification { causal: true, ..lengths })
        },
        Situation { queries: 16, heads: 20, keys: 200, ..few(Unit::Parts, 64, causal) },
        Situation { queries: 5, heads: 8, ..few(Unit::Parts, 256, none) },
        groups([200, 1030, 64, 64], none),
        groups([200, 1100, 64, 64], causal),
        groups([193, 640, 64, 40], Modification { left: Some(150), right: Some(40), ..none }),
        groups([130, 650, 128, 128], causal),
        groups([129, 640, 128, 72], Modification { left: Some(200), ..causal }),
        groups([140, 410, 256, 256], none),
        // Rows that end within a panel of 64 elements, of two widths, and others that end within a product.
        groups([200, 370, 80, 80], none),
        groups([200, 240, 72, 72], causal),
        groups([193, 300, 96, 64], Modification { left: Some(150), right: Some(40), ..none }),
        groups([200, 330, 88, 96], causal),
        groups([140, 300, 112, 112], none),
        groups([140, 150, 104, 112], Modification { left: Some(70), ..causal }),
        groups([140, 250, 120, 120], causal),
        groups([140, 260, 160, 160], none),
        groups([140, 130, 136, 152], causal),
        groups([140, 300, 192, 128], none),
        groups([140, 270, 184, 120], causal),
        groups([140, 230, 128, 192], causal),
        groups([140, 230, 192, 192], Modification { left: Some(100), right: Some(20), ..none }),
        Situation { batch: 3, ..groups([70, 150, 80, 80], lengths) },
        Situation { batch: 3, ..groups([70, 150, 160, 160], Modification { causal: true, ..lengths }) },
        Situation { batch: 3, ..groups([70, 150, 192, 128], Modification { causal: true, ..lengths }) },
        Situation { batch: 3, ..groups([70, 130, 184, 184], lengths) },
        Situation {
            batch: 2,
            heads: 4,
            key_heads: 2,
            rows: Rows::ByHead,
            ..groups([70, 140, 80, 96], everything)
        },
        Situation { heads: 4, key_heads: 2, ..groups([70, 140, 112, 104], everything) },
        Situation { heads: 2, ..groups([70, 140, 192, 128], everything) },
        Situation { heads: 2, ..groups([70, 140, 160, 136], everything) },
        Situation { heads: 2, ..groups([70, 100, 192, 184], everything) },
        groups([140, 500, 200, 256], causal),
        groups([300, 120, 64, 64], causal),
        Situation { batch: 3, ..groups([70, 300, 64, 64], lengths) },
        Situation { batch: 3, ..groups([70, 300, 128, 128], Modification { causal: true, ..lengths }) },
        Situation { spread: 30.0, ..groups([70, 300, 128, 128], none) },
        Situation {
            batch: 2,
            heads: 4,
            key_heads: 2,
            rows: Rows::ByHead,
            ..groups([70, 300, 64, 64], everything)
        },
        warps(64, none),
        warps(64, everything),
        warps(128, causal),
        warps(256, none),
        Situation { batch: 4, ..warps(64, Modification { packed: true, causal: true, ..none }) },
    ]
}

/// Blocks of warpgroups that stay for several tiles of queries: heads that end within a round and with one, few tiles of a head and more, and queries
/// that see no key.
fn persistent() -> Vec<Situation> {
    let none = Modification::default();
    let causal = Modification { causal: true, ..none };
    let everything = Modification {
        left: Some(30),
        softcap: Some(5.0),
        bias: Some([true, false, false, false]),
        alibi: Some(AlibiSlopes::PerBatchAndHead),
        sinks: true,
        ..causal
    };
    let of = |batch, heads, [queries, keys, width, value_width]: [usize; 4], modification| Situation {
        batch,
        heads,
        key_heads: heads,
        queries,
        keys,
        width,
        value_width,
        modification,
        unit: Unit::Persistent,
        ..PLAIN
    };
    vec![
        of(1, 3, [200, 150, 64, 64], none),
        of(2, 2, [300, 330, 64, 40], causal),
        of(1, 2, [650, 640, 64, 64], causal),
        of(1, 3, [640, 130, 64, 64], Modification { left: Some(100), ..causal }),
        of(2, 3, [70, 5, 64, 64], none),
        of(2, 2, [130, 140, 128, 128], everything),
        of(2, 1, [260, 70, 200, 256], none),
        of(2, 2, [400, 130, 80, 80], causal),
        of(1, 3, [200, 150, 96, 88], none),
        of(2, 2, [140, 140, 112, 112], none),
        of(2, 2, [140, 140, 160, 152], causal),
        of(2, 2, [140, 140, 192, 128], causal),
        of(1, 2, [140, 120, 184, 192], none),
    ]
}

/// All gradients in one sweep: several tiles of keys, which add to tiles of queries in turn, parts of tiles at the ends, queries and keys that
/// see nothing, and more heads than are side by side.
fn fused() -> Vec<Situation> {
    let none = Modification::default();
    let causal = Modification { causal: true, ..none };
    let of = |layout, [queries, keys, width, value_width]: [usize; 4], modification| Situation {
        queries,
        keys,
        width,
        value_width,
        modification,
        unit: Unit::Fused(layout),
        ..PLAIN
    };
    vec![
        of(0, [200, 300, 64, 64], none),
        Situation {
            batch: 2,
            heads: 4,
            key_heads: 2,
            rows: Rows::ByHead,
            ..of(0, [150, 140, 64, 40], causal)
        },
        of(0, [300, 130, 64, 64], Modification { left: Some(100), right: Some(20), ..none }),
        Situation { batch: 3, ..of(0, [130, 200, 64, 64], Modification { lengths: true, ..causal }) },
        of(0, [150, 270, 128, 128], none),
        Situation {
            heads: 3,
            key_heads: 3,
            ..of(0, [70, 140, 96, 128], Modification { left: Some(30), ..causal })
        },
        Situation { batch: 3, ..of(0, [70, 150, 128, 72], Modification { lengths: true, ..none }) },
        // Groups whose parts of the gradients of queries are of different sizes.
        of(0, [170, 270, 80, 80], none),
        Situation {
            batch: 2,
            heads: 4,
            key_heads: 2,
            rows: Rows::ByHead,
            ..of(0, [150, 140, 72, 80], causal)
        },
        of(0, [170, 270, 96, 64], causal),
        of(1, [130, 140, 88, 96], none),
        Situation { batch: 3, ..of(0, [100, 150, 96, 96], Modification { lengths: true, ..causal }) },
        of(0, [170, 140, 112, 104], none),
        of(2, [150, 140, 112, 112], Modification { left: Some(30), ..causal }),
        Situation { batch: 3, ..of(0, [90, 150, 112, 112], Modification { lengths: true, ..none }) },
        of(0, [130, 130, 64, 64], Modification { sinks: true, top_left: true, ..causal }),
    ]
}

/// `f32` from copies of the tensors, and numbers that do not suit them; last, so many rows that tuning chooses this.
fn of_copies() -> Vec<Situation> {
    let none = Modification::default();
    let copies = |[queries, keys, width, value_width]: [usize; 4], modification| Situation {
        queries,
        keys,
        width,
        value_width,
        modification,
        unit: Unit::Copies,
        ..PLAIN
    };
    let grouped = |situation| Situation { heads: 4, key_heads: 2, rows: Rows::ByHead, ..situation };
    let causal = Modification { causal: true, ..none };
    vec![
        copies([140, 300, 64, 64], none),
        grouped(copies([200, 130, 64, 40], causal)),
        copies([130, 140, 128, 72], Modification { left: Some(70), ..causal }),
        Situation { batch: 2, ..copies([70, 150, 40, 64], Modification { lengths: true, ..causal }) },
        copies([130, 128, 64, 64], Modification { dropout: Some(0.3), ..none }),
        copies(
            [70, 140, 64, 64],
            Modification { softcap: Some(5.0), bias: Some([true, false, false, false]), sinks: true, ..none },
        ),
        Situation { sizes: Sizes::OfTiles, ..copies([130, 200, 64, 64], none) },
        Situation { key_heads: 2, sizes: Sizes::OfRows, ..copies([70, 130, 72, 64], none) },
        Situation { spread: 30.0, ..copies([130, 70, 64, 64], none) },
        Situation { nan: true, ..copies([70, 130, 64, 64], causal) },
        Situation { heads: 1, unit: Unit::Chosen, ..copies([384, 390, 64, 64], causal) },
    ]
}

/// Keys and values of e4m3, in every kernel that reads them: with all modifications, rows that end within a piece, pages, several rows
/// for a key head, and more queries than are few.
fn float8() -> Vec<Situation> {
    let (tensor, head) = (CacheScale::PerTensor, CacheScale::PerHead);
    let none = Modification { float8: Some([tensor; 2]), ..Modification::default() };
    let lengths = Modification { lengths: true, float8: Some([head, tensor]), ..none };
    let causal = Modification { causal: true, float8: Some([tensor, head]), ..none };
    let everything = Modification {
        left: Some(100),
        softcap: Some(5.0),
        bias: Some([true, false, false, false]),
        alibi: Some(AlibiSlopes::PerBatchAndHead),
        lengths: true,
        sinks: true,
        float8: Some([head; 2]),
        ..causal
    };
    let of = |unit, [queries, keys, width, value_width]: [usize; 4], modification| Situation {
        batch: 3,
        queries,
        keys,
        heads: 6,
        key_heads: 2,
        width,
        value_width,
        modification,
        unit,
        ..PLAIN
    };
    let of_heads = |situation| Situation { rows: Rows::ByHead, ..situation };
    let paged = |rows, of: Situation| Situation {
        modification: Modification { lengths: true, paged: Some(rows), ..of.modification },
        ..of
    };
    vec![
        of(Unit::Chosen, [1, 70, 128, 128], none),
        of(Unit::Chosen, [2, 90, 64, 64], everything),
        of_heads(of(Unit::Chosen, [3, 40, 256, 256], lengths)),
        of(Unit::Chosen, [4, 50, 80, 96], causal),
        of(Unit::Chosen, [1, 40, 72, 40], lengths),
        Situation { lead: 1, ..of(Unit::Chosen, [2, 37, 13, 7], causal) },
        Situation { queries: 40, ..of(Unit::Chosen, [1, 60, 64, 64], causal) },
        Situation { spread: 30.0, ..of(Unit::Chosen, [2, 60, 64, 64], none) },
        Situation { nan: true, ..of(Unit::Chosen, [2, 60, 64, 64], causal) },
        of(Unit::Chosen, [2, 0, 64, 64], lengths),
        paged(16, of(Unit::Chosen, [1, 70, 128, 128], lengths)),
        paged(64, of(Unit::Chosen, [20, 150, 64, 64], everything)),
        of(Unit::Warps, [2, 100, 64, 64], everything),
        of(Unit::Warps, [1, 130, 128, 112], lengths),
        of(Unit::Warps, [1, 40, 256, 192], none),
        of(Unit::Parts, [2, 300, 64, 64], everything),
        of(Unit::Parts, [9, 150, 128, 128], lengths),
        of(Unit::Parts, [16, 150, 96, 64], causal),
        of(Unit::Parts, [40, 90, 256, 256], none),
    ]
}

/// Probabilities that are dropped, in every layout of the lanes that share draws.
fn dropped() -> Vec<Situation> {
    let dropout = Modification { dropout: Some(0.3), ..Modification::default() };
    let with = |modification| Situation { modification, ..PLAIN };
    vec![
        with(dropout),
        Situation { queries: 130, keys: 140, width: 64, value_width: 64, ..with(dropout) },
        Situation { batch: 2, queries: 5, keys: 3, width: 40, value_width: 24, lead: 1, ..with(dropout) },
        Situation {
            queries: 50,
            heads: 1,
            width: 128,
            value_width: 128,
            ..with(Modification { causal: true, dropout: Some(0.5), ..dropout })
        },
        Situation { queries: 20, keys: 37, heads: 1, width: 256, value_width: 256, ..with(dropout) },
        Situation {
            batch: 3,
            heads: 4,
            key_heads: 2,
            ..with(Modification {
                left: Some(30),
                softcap: Some(5.0),
                bias: Some([true, false, false, false]),
                alibi: Some(AlibiSlopes::PerBatchAndHead),
                lengths: true,
                sinks: true,
                ..dropout
            })
        },
        Situation { batch: 4, heads: 4, key_heads: 2, ..with(Modification { packed: true, ..dropout }) },
        Situation { queries: 3, ..with(Modification { dropout: Some(1.0), ..dropout }) },
    ]
}

/// Masks of tiles: several tiles of rows and columns, the last ones of which are cut. Those of warpgroups have 16 bits alone.
fn blocks() -> Vec<Situation> {
    let groups = |[queries, keys, width, value_width]: [usize; 4], modification| Situation {
        queries,
        keys,
        width,
        value_width,
        modification,
        unit: Unit::Wgmma,
        ..PLAIN
    };
    let of = |pattern, same, more| Modification { blocks: Some((pattern, same)), ..more };
    let none = Modification::default();
    let with = |[queries, keys, width]: [usize; 3], modification| Situation {
        queries,
        keys,
        width,
        value_width: width,
        modification,
        ..PLAIN
    };
    vec![
        Situation { batch: 2, ..with([200, 300, 32], of(Pattern::Tiles, [false; 2], none)) },
        Situation {
            batch: 2,
            heads: 4,
            key_heads: 2,
            rows: Rows::ByHead,
            ..with([270, 150, 64], of(Pattern::Tiles, [true, false], Modification { sinks: true, ..none }))
        },
        Situation { batch: 2, ..with([140, 130, 128], of(Pattern::Tiles, [false, true], none)) },
        with([300, 280, 64], of(Pattern::Documents, [true; 2], Modification { softcap: Some(5.0), ..none })),
        with(
            [200, 200, 40],
            of(Pattern::Causal, [true; 2], Modification { alibi: Some(AlibiSlopes::PerHead), ..none }),
        ),
        with([140, 270, 64], of(Pattern::Tiles, [true; 2], Modification { dropout: Some(0.3), ..none })),
        with([20, 130, 32], of(Pattern::Empty, [true; 2], none)),
        with([5, 256, 64], of(Pattern::Full, [true; 2], none)),
        with([3, 40, 64], of(Pattern::Causal, [true; 2], none)),
        with([0, 40, 32], of(Pattern::Full, [true; 2], none)),
        with([40, 0, 32], of(Pattern::Full, [true; 2], none)),
        Situation { lead: 1, ..with([130, 150, 32], of(Pattern::Tiles, [true; 2], none)) },
        with([140, 140, 256], of(Pattern::Tiles, [true; 2], none)),
        groups([260, 520, 64, 64], of(Pattern::Tiles, [true; 2], none)),
        groups([400, 390, 128, 128], of(Pattern::Causal, [true; 2], none)),
        groups([300, 390, 80, 96], of(Pattern::Documents, [true; 2], none)),
        groups([140, 260, 160, 152], of(Pattern::Tiles, [true; 2], none)),
        groups([260, 270, 192, 128], of(Pattern::Causal, [true; 2], none)),
        groups(
            [140, 140, 184, 192],
            of(Pattern::Tiles, [true; 2], Modification { softcap: Some(5.0), ..none }),
        ),
        groups([200, 190, 192, 192], of(Pattern::Tiles, [true; 2], none)),
        Situation {
            unit: Unit::Persistent,
            heads: 3,
            key_heads: 3,
            ..groups([450, 300, 64, 64], of(Pattern::Tiles, [true, false], none))
        },
        Situation {
            unit: Unit::Persistent,
            batch: 2,
            ..groups([400, 200, 128, 128], of(Pattern::Documents, [true; 2], none))
        },
    ]
}

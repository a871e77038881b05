//! A problem of attention in a case: sizes, layouts in memory, modifications, and the kernel that computes it.

use warpwright_ops::attention::{
    AlibiSlopes, Alignment, AttentionDesc, AttentionOptions, BlockMaskTables, CacheScale, Float8Cache,
    Packed, Paged, Window,
};
use warpwright_ops::plan::{Layout, Real};
use warpwright_ptx::DType;

use crate::budget::{self, Budget};

/// How the rows of a tensor lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// `[batch, sequence, heads, head_dim]`
    BySequence,
    /// `[batch, heads, sequence, head_dim]`
    ByHead,
}

/// Modifications of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Modification {
    pub(super) causal: bool,
    pub(super) left: Option<u32>,
    pub(super) right: Option<u32>,
    pub(super) top_left: bool,
    pub(super) softcap: Option<f64>,
    /// Extents of the bias that are 1.
    pub(super) bias: Option<[bool; 4]>,
    pub(super) alibi: Option<AlibiSlopes>,
    pub(super) lengths: bool,
    pub(super) sinks: bool,
    /// Rows of a page.
    pub(super) paged: Option<usize>,
    /// Whether the sequences are packed, each with some queries and keys less than the last.
    pub(super) packed: bool,
    /// The probability that a probability is dropped.
    pub(super) dropout: Option<f64>,
    /// Scales of keys and values of e4m3.
    pub(super) float8: Option<[CacheScale; 2]>,
    /// A mask as tiles, and whether it is the same for all batches and for all heads.
    pub(super) blocks: Option<(Pattern, [bool; 2])>,
}

/// Which pairs a mask of tiles has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Tiles that are empty, whole, and random, where one in 37 queries sees nothing.
    Tiles,
    /// Documents of 90 queries and keys.
    Documents,
    /// A query sees the keys up to its position, which counts from the first.
    Causal,
    /// Nothing.
    Empty,
    /// Everything.
    Full,
}

impl Pattern {
    fn sees(self, list: usize, query: usize, key: usize) -> bool {
        let hash = |words: [usize; 3]| {
            let word = words.into_iter().fold(0x9e37_79b9_7f4a_7c15u64, |hash, word| {
                (hash ^ word as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
            });
            word.wrapping_mul(0x94d0_49bb_1331_11eb) >> 40
        };
        match self {
            Self::Tiles => match hash([list, query / 128, key / 128]) % 4 {
                0 => false,
                1 => true,
                _ => query % 37 != 5 && hash([list + 1000, query, key]) % 2 == 0,
            },
            Self::Documents => query / 90 == key / 90,
            Self::Causal => key <= query,
            Self::Empty => false,
            Self::Full => true,
        }
    }
}

/// Which of the kernels computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// The one that tuning chooses, of any type.
    Chosen,
    /// Products of warps, whose tiles come by asynchronous copies.
    Warps,
    /// Few queries, whose keys tensor copies bring, where the target has them, in parts that another launch puts together.
    Parts,
    /// Products of warpgroups, where the target has them: what tuning chooses, in cases that would take other types too long.
    Wgmma,
    /// The same with few blocks that stay for all tiles of queries.
    Persistent,
    /// All gradients in one sweep, where the target has it, with the layout of this number.
    Fused(usize),
    /// Products of `f32` from copies, in both directions, where the target has them: what tuning chooses for more rows.
    Copies,
}

/// How sizes of values and of gradients of the result are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    Alike,
    /// By 2^12 from one 64 rows to the next.
    OfTiles,
    /// One row of values, of the first head, is smaller by 2^30.
    OfRows,
}

impl Sizes {
    /// The factor of row `row` of head `head`.
    pub(super) fn factor(self, row: usize, head: usize) -> f64 {
        match self {
            Self::Alike => 1.0,
            Self::OfTiles => 2f64.powi(12 * (row / 64 % 3) as i32 - 12),
            Self::OfRows if (row, head) == (5, 0) => 2f64.powi(-30),
            Self::OfRows => 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) width: usize,
    pub(super) value_width: usize,
    pub(super) rows: Rows,
    /// Elements past an aligned address.
    pub(super) lead: usize,
    /// The factor of normal queries and keys.
    pub(super) spread: f64,
    /// Whether one key is NaN.
    pub(super) nan: bool,
    pub(super) unit: Unit,
    pub(super) sizes: Sizes,
    pub(super) modification: Modification,
}

pub(super) const PLAIN: Situation = Situation {
    batch: 1,
    queries: 33,
    keys: 70,
    heads: 2,
    key_heads: 1,
    width: 32,
    value_width: 32,
    rows: Rows::BySequence,
    lead: 0,
    spread: 1.0,
    nan: false,
    unit: Unit::Chosen,
    sizes: Sizes::Alike,
    modification: Modification {
        causal: false,
        left: None,
        right: None,
        top_left: false,
        softcap: None,
        bias: None,
        alibi: None,
        lengths: false,
        sinks: false,
        paged: None,
        packed: false,
        dropout: None,
        float8: None,
        blocks: None,
    },
};

/// Seed and offset of dropout in all cases that have it.
pub(super) const SEED: u64 = 0x000f_1234_5678_9abc;
pub(super) const OFFSET: u64 = 0x0005_0000_0003;

impl Situation {
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{} keys, {} kv heads", self.keys, self.key_heads);
        let m = self.modification;
        let mut add = |on: bool, word: &str| {
            if on {
                text.push_str(", ");
                text.push_str(word);
            }
        };
        add(self.value_width != self.width, &format!("values of {}", self.value_width));
        add(self.rows == Rows::ByHead, "heads first");
        add(self.lead > 0, "misaligned");
        add(self.spread != 1.0, &format!("spread {}", self.spread));
        add(self.nan, "one key NaN");
        add(self.unit == Unit::Warps, "products of warps");
        add(self.unit == Unit::Parts, "parts");
        add(self.unit == Unit::Copies, "copies");
        if let Unit::Fused(layout) = self.unit {
            add(true, &format!("one sweep, layout {layout}"));
        }
        add(self.unit == Unit::Persistent, "persistent blocks");
        add(self.sizes == Sizes::OfTiles, "sizes of tiles far apart");
        add(self.sizes == Sizes::OfRows, "sizes of rows far apart");
        add(m.causal, "causal");
        add(m.top_left, "top-left");
        add(m.left.is_some() || m.right.is_some(), "window");
        add(m.softcap.is_some(), "softcap");
        add(m.bias.is_some(), &format!("bias {:?}", m.bias.unwrap_or_default().map(u8::from)));
        add(m.alibi.is_some(), "alibi");
        add(m.lengths, "key lengths");
        add(m.sinks, "sinks");
        add(m.paged.is_some(), &format!("pages of {}", m.paged.unwrap_or(0)));
        add(m.packed, "packed");
        add(m.dropout.is_some(), &format!("dropout {}", m.dropout.unwrap_or(0.0)));
        if let Some((pattern, same)) = m.blocks {
            add(true, &format!("mask of tiles {pattern:?}, same {same:?}"));
        }
        if let Some(scales) = m.float8 {
            add(true, &format!("e4m3, {scales:?}"));
        }
        text
    }

    pub(super) fn layout(&self, [batch, rows, heads, width]: [usize; 4]) -> Layout {
        match self.rows {
            Rows::BySequence => Layout::contiguous([batch, rows, heads, width]),
            Rows::ByHead => {
                let Layout { strides: [b, h, r, d], .. } = Layout::contiguous([batch, heads, rows, width]);
                Layout { shape: [batch, rows, heads, width], strides: [b, r, h, d] }
            }
        }
    }

    /// Queries and keys of each sequence.
    pub(super) fn counts(&self) -> Vec<[usize; 2]> {
        let Self { queries, keys, .. } = *self;
        let packed = [[queries, keys], [queries / 2, keys / 3], [0, keys / 2], [queries / 3, 0]];
        let of = |b: usize| if self.modification.packed { packed[b % 4] } else { [queries, keys] };
        (0..self.batch).map(of).collect()
    }

    /// Where each sequence begins among the packed queries or keys, and how many there are.
    pub(super) fn offsets(&self, which: usize) -> Vec<usize> {
        let mut out = vec![0];
        for counts in self.counts() {
            out.push(out.last().unwrap_or(&0) + counts[which]);
        }
        out
    }

    /// The layout of a tensor of queries (`which` 0) or keys.
    pub(super) fn rows_layout(&self, which: usize, heads: usize, width: usize) -> Layout {
        if self.modification.packed {
            let all = self.offsets(which).pop().unwrap_or(0);
            return Layout::contiguous([1, all, heads, width]);
        }
        match self.modification.paged {
            Some(rows) if which == 1 => {
                Layout::contiguous([self.pages(rows) * self.batch + 1, rows, heads, width])
            }
            _ => self.layout([self.batch, [self.queries, self.keys][which], heads, width]),
        }
    }

    /// Pages of a sequence.
    pub(super) fn pages(&self, rows: usize) -> usize {
        self.keys.div_ceil(rows)
    }

    /// The page of each part of a sequence: from the last one down, so that none lies where it would without a table.
    pub(super) fn table(&self, rows: usize) -> Vec<usize> {
        (0..self.batch * self.pages(rows)).rev().collect()
    }

    /// Where the elements of a tensor `[batch, rows, heads, width]` of the reference lie in that of the kernel.
    pub(super) fn places(&self, which: usize, heads: usize, width: usize) -> Vec<Option<usize>> {
        let layout = self.rows_layout(which, heads, width);
        if !self.modification.packed && (which == 0 || self.modification.paged.is_none()) {
            return offsets(&layout).into_iter().map(Some).collect();
        }
        let longest = [self.queries, self.keys][which];
        let (counts, firsts) = (self.counts(), self.offsets(which));
        let row_at = |b: usize, row: usize| match self.modification.paged {
            Some(rows) => self.table(rows)[b * self.pages(rows) + row / rows] * rows + row % rows,
            None => firsts[b] + row,
        };
        let mut out = Vec::new();
        for (b, count) in counts.iter().enumerate() {
            for row in 0..longest {
                let there = row < count[which];
                let first = if there { row_at(b, row) * heads * width } else { 0 };
                out.extend((0..heads * width).map(|at| there.then_some(first + at)));
            }
        }
        out
    }

    pub(super) fn q(&self) -> Layout {
        self.rows_layout(0, self.heads, self.width)
    }

    pub(super) fn k(&self) -> Layout {
        self.rows_layout(1, self.key_heads, self.width)
    }

    pub(super) fn v(&self) -> Layout {
        self.rows_layout(1, self.key_heads, self.value_width)
    }

    pub(super) fn o(&self) -> Layout {
        self.rows_layout(0, self.heads, self.value_width)
    }

    pub(super) fn bias(&self) -> Option<Layout> {
        let keys = self.modification.paged.map_or(self.keys, |rows| self.pages(rows) * rows);
        let full = [self.batch, self.heads, self.queries, keys];
        self.modification
            .bias
            .map(|one| Layout::contiguous(std::array::from_fn(|i| if one[i] { 1 } else { full[i] })))
    }

    pub(super) fn budget(&self, dtype: DType) -> Budget {
        // Without the usual factor of the softmax the products of wide rows are greater, too.
        let scores = self.spread * self.spread * (self.width as f64).sqrt();
        budget::attention(dtype, if self.spread > 1.0 { scores } else { 1.0 })
    }

    /// The type of keys and values beside queries of `dtype`.
    pub(super) fn cache_dtype(&self, dtype: DType) -> DType {
        if self.modification.float8.is_some() { DType::F8E4M3 } else { dtype }
    }

    /// The scale of keys (`which` 0) or values of e4m3 of a head: no power of two, so that a step that is left out or rounded
    /// shows.
    pub(super) fn scale(&self, which: usize, head: usize) -> f64 {
        let of = |scales: [CacheScale; 2]| match scales[which] {
            CacheScale::PerTensor => 0.7,
            CacheScale::PerHead => 0.3 + head as f64 * 0.7,
        };
        self.modification.float8.map_or(1.0, |scales| f64::from(of(scales) as f32))
    }

    /// Numbers of the scale of keys or values, if there is one.
    pub(super) fn scales(&self, which: usize) -> Option<Vec<f64>> {
        let heads = |scales: [CacheScale; 2]| match scales[which] {
            CacheScale::PerTensor => 1,
            CacheScale::PerHead => self.key_heads,
        };
        let heads = self.modification.float8.map(heads)?;
        Some((0..heads).map(|head| self.scale(which, head)).collect())
    }

    /// The tables of the mask.
    pub(super) fn tables(&self) -> Option<BlockMaskTables> {
        let (_, same) = self.modification.blocks?;
        let [batch, heads] =
            [(self.batch, same[0]), (self.heads, same[1])].map(|(all, one)| if one { 1 } else { all });
        BlockMaskTables::from_fn([batch, heads, self.queries, self.keys], |b, h, i, j| self.sees(b, h, i, j))
            .ok()
    }

    /// Whether the mask has a pair.
    pub(super) fn sees(&self, b: usize, h: usize, i: usize, j: usize) -> bool {
        self.modification.blocks.is_none_or(|(pattern, same)| {
            let [b, h] = [(b, same[0]), (h, same[1])].map(|(at, one)| if one { 0 } else { at });
            pattern.sees(b * self.heads + h, i, j)
        })
    }

    pub(super) fn desc(&self, dtype: DType) -> AttentionDesc {
        let m = self.modification;
        AttentionDesc {
            dtype,
            q: self.q(),
            k: self.k(),
            v: self.v(),
            o: self.o(),
            options: AttentionOptions {
                softmax_scale: (self.spread > 1.0).then(|| Real::new(1.0)),
                causal: m.causal,
                window: Window { left: m.left, right: m.right },
                alignment: if m.top_left { Alignment::TopLeft } else { Alignment::BottomRight },
                softcap: m.softcap.map(Real::new),
                bias: self.bias(),
                alibi: m.alibi,
                key_lengths: m.lengths,
                packed: m.packed.then(|| Packed {
                    sequences: self.batch,
                    longest_queries: self.counts().iter().map(|c| c[0]).max().unwrap_or(0),
                    longest_keys: self.counts().iter().map(|c| c[1]).max().unwrap_or(0),
                }),
                paged: m.paged.map(|rows| Paged { pages: self.pages(rows) }),
                sinks: m.sinks,
                dropout: m.dropout.map(Real::new),
                float8: m.float8.map(|[k_scale, v_scale]| Float8Cache { k_scale, v_scale }),
                block_mask: self.tables().map(|tables| tables.shape),
            },
        }
    }
}

/// Element offsets of a layout in the order of its shape.
pub(super) fn offsets(layout: &Layout) -> Vec<usize> {
    let [a, b, c, d] = layout.shape;
    let mut out = Vec::with_capacity(a * b * c * d);
    for i in 0..a {
        for j in 0..b {
            for l in 0..c {
                for m in 0..d {
                    let at = [i, j, l, m].into_iter().zip(layout.strides).map(|(i, s)| i as i64 * s);
                    out.push(at.sum::<i64>() as usize);
                }
            }
        }
    }
    out
}

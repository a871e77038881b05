//! Sums of rows by their indices: the launches that sort the indices and add up the rows of each run of equal ones.

use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::{Elem, In, KernelDef, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::{kernel, sort, tuning, words};
use crate::PlanError;
use crate::plan::{self, Variant, small};
use crate::tensors::OutSlot;

/// `count` rows of `dim` elements, which are added up by their indices to `rows` rows.
pub(crate) struct Runs {
    pub(crate) op: &'static str,
    pub(crate) dtype: DType,
    pub(crate) index: DType,
    pub(crate) rows: usize,
    pub(crate) dim: usize,
    pub(crate) count: usize,
    /// A row to which none is added.
    pub(crate) padding_idx: Option<usize>,
}

/// Where the tensors are.
pub(crate) struct Places {
    pub(crate) x: In<Elem>,
    pub(crate) indices: In<u32>,
    pub(crate) y: Out<Elem>,
    pub(crate) workspace: OutSlot,
}

/// Where what is kept lies in the workspace, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workspace {
    /// Sorted rows and places, of both sides of a pass.
    keys: [u64; 2],
    places: [u64; 2],
    /// Counts of the digits of each tile.
    counts: u64,
    /// Where the places of each row begin.
    starts: u64,
    /// Sums of whole parts.
    partials: u64,
    /// Words of 32 bits of all of it.
    words: usize,
}

impl Workspace {
    /// Elements of all of it, of the type that elements of `dtype` are summed in.
    pub(crate) fn elements(&self, dtype: DType) -> usize {
        self.words * 4 / dtype.accumulator().bytes()
    }
}

impl Runs {
    pub(crate) fn workspace(&self) -> Result<Workspace, PlanError> {
        let Self { op, dtype, rows, dim, count, .. } = *self;
        let mut end = 0usize;
        let mut take = |words: Option<usize>| {
            let first = end;
            // Sums are loaded in vectors.
            let next = words.and_then(|words| first.checked_add(words)?.checked_next_multiple_of(4));
            end = next.filter(|n| i64::try_from(*n).is_ok_and(|n| n < i64::MAX / 8)).ok_or_else(|| {
                let got = format!("[{rows}, {dim}] and {count} indices");
                PlanError::refused(op, "workspace", got, "a workspace that can be addressed")
            })?;
            Ok::<_, PlanError>(first as u64 * 4)
        };
        let sums = dim.checked_mul(count / tuning::PART as usize);
        let sums = sums.and_then(|n| n.checked_mul(dtype.accumulator().bytes() / 4));
        let tiles = tuning::tiles(count).0;
        let keys = [take(Some(count))?, take(Some(count))?];
        let places = [take(Some(count))?, take(Some(count))?];
        let counts = take(tiles.checked_mul(tuning::DIGITS as usize))?;
        let starts = take(rows.checked_add(1))?;
        let partials = take(sums)?;
        Ok(Workspace { keys, places, counts, starts, partials, words: end })
    }

    /// The launches that sort the indices, and where the sorted ones are.
    fn sort(
        &self,
        at: &Workspace,
        places: &Places,
        target: Target,
    ) -> Result<(Vec<LaunchStep>, usize), PlanError> {
        let Self { op, index, rows, count, .. } = *self;
        let workspace = places.workspace;
        let (tiles, tile) = tuning::tiles(count);
        let mut steps = Vec::new();
        if count == 0 {
            return Ok((steps, 0));
        }
        let passes = tuning::passes(rows);
        for pass in 0..passes {
            let (from, to) = (pass as usize % 2, (pass as usize + 1) % 2);
            let source = sort::SourceArgs {
                indices: places.indices.clone(),
                words: words(index),
                rows: rows as u64,
                padding_idx: self.padding_idx.map_or(-1, |row| row as i64),
                keys: workspace.written_at(at.keys[from]),
                places: workspace.written_at(at.places[from]),
                count: small(count),
                tile,
                shift: pass * tuning::DIGIT_BITS,
            };
            let first = pass == 0;
            let grid = [small(tiles), 1, 1];
            let args = sort::CountArgs { source: source.clone(), counts: workspace.arg_at(at.counts) };
            steps.push(plan::launch(op, &sort::Count { first }, args, target, grid)?);
            let args = sort::ScatterArgs {
                source,
                counts: workspace.written_at(at.counts),
                tiles: small(tiles),
                keys: workspace.arg_at(at.keys[to]),
                places: workspace.arg_at(at.places[to]),
            };
            steps.push(plan::launch(op, &sort::Scatter { first }, args, target, grid)?);
        }
        Ok((steps, passes as usize % 2))
    }

    /// The ways to launch all of it. `parts` and `sums` make the kernels that add up, with their arguments, for a number of elements of a
    /// vector.
    pub(crate) fn variants<P: KernelDef, S: KernelDef>(
        &self,
        places: &Places,
        target: Target,
        parts: impl Fn(u32, kernel::PartArgs) -> (P, P::Args),
        sums: impl Fn(u32, kernel::RowArgs) -> (S, S::Args),
    ) -> Result<Vec<Variant>, PlanError> {
        let Self { op, dtype, rows, dim, count, .. } = *self;
        let (at, workspace) = (self.workspace()?, places.workspace);
        let (sorting, sorted) = self.sort(&at, places, target)?;
        let mut variants = Vec::new();
        for width in tuning::widths(dtype, dim) {
            let vectors = dim / width as usize;
            let columns = vectors.div_ceil(tuning::LANES as usize);
            let of_rows = kernel::SumArgs {
                dy: places.x.clone(),
                places: workspace.written_at(at.places[sorted]),
                vectors: small(vectors),
                columns: DivisorArgs::new(small(columns)),
            };
            let mut steps = Vec::new();
            let rows_grid = plan::cover(op, rows.saturating_mul(columns), tuning::SUM_WARPS)?;
            if let (Some(grid), true) = (rows_grid, dim > 0) {
                tuning::check_warps(op, rows.saturating_mul(columns))?;
                steps.clone_from(&sorting);
                let args = sort::StartsArgs {
                    keys: workspace.written_at(at.keys[sorted]),
                    count: small(count),
                    rows: small(rows),
                    starts: workspace.arg_at(at.starts),
                };
                if let Some(grid) = plan::cover(op, rows + 1, tuning::STARTS_THREADS)? {
                    steps.push(plan::launch(op, &sort::Starts, args, target, grid)?);
                }
                let whole = count / tuning::PART as usize;
                if let Some(grid) = plan::cover(op, whole.saturating_mul(columns), tuning::SUM_WARPS)? {
                    tuning::check_warps(op, whole.saturating_mul(columns))?;
                    let args = kernel::PartArgs {
                        sums: of_rows.clone(),
                        keys: workspace.written_at(at.keys[sorted]),
                        rows: small(rows),
                        parts: small(whole),
                        partials: workspace.arg_at(at.partials),
                    };
                    let (def, args) = parts(width, args);
                    steps.push(plan::launch(op, &def, args, target, grid)?);
                }
                let args = kernel::RowArgs {
                    sums: of_rows,
                    starts: workspace.written_at(at.starts),
                    partials: workspace.written_at(at.partials),
                    rows: small(rows),
                    mean: 0,
                    dweight: places.y.clone(),
                };
                let (def, args) = sums(width, args);
                steps.push(plan::launch(op, &def, args, target, grid)?);
            }
            variants.push(Variant { alignment: tuning::alignment(dtype, width), steps });
        }
        Ok(variants)
    }
}

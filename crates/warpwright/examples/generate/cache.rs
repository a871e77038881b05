//! Keys and values of the tokens so far, and the kernel that appends to them.

use warpwright::attention::Scores;
use warpwright::dsl::prelude::*;
use warpwright::ptx::kernel::Kernel;
use warpwright::{LaunchStep, Stream, Tensor, TensorRef, attention};

use super::common::Result;

kernel_args! {
    /// Rows of keys and values, and the caches whose rows from the first of `positions` on they become.
    pub struct AppendArgs => AppendParams {
        k: In<Elem>, v: In<Elem>, positions: In<i32>, k_cache: Out<Elem>, v_cache: Out<Elem>, row: u64, n: u64, capacity: u64,
    }
}

/// Copies rows behind those that a cache has. The place is read on the device, so that a graph can be launched for each of them; rows
/// that the cache has no room for are left out.
struct Append {
    dtype: DType,
    width: u32,
}

impl KernelDef for Append {
    type Args = AppendArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("append_{}_x{}", self.dtype, self.width), BlockDim::x(256))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, args: AppendParams<'k>) {
        let first = args.positions.at(0).get::<i32>().to_u64() * args.row;
        let end = args.capacity * args.row;
        elementwise(k, args.n, self.width, |i, width| {
            let to = first + i.to_u64();
            k.if_(to.lt(end), || {
                args.k_cache.at(to).store(args.k.at(i).load::<f32>(width));
                args.v_cache.at(to).store(args.v.at(i).load::<f32>(width));
            });
        });
    }
}

/// The keys and values of one layer.
pub(crate) struct Cache {
    append: Kernel,
    width: u32,
    /// `[1, capacity, num_kv_heads, head_dim]`
    k: Tensor,
    /// As `k`.
    v: Tensor,
}

/// Where the tokens of a step are.
pub(crate) struct Places<'a> {
    /// The position of each token, `[tokens]` in i32; they follow each other.
    pub(crate) positions: TensorRef<'a>,
    /// `[1]` in i32: the tokens of the text with these.
    pub(crate) length: TensorRef<'a>,
}

impl Cache {
    pub(crate) fn new(stream: &Stream, dtype: DType, shape: [usize; 3]) -> Result<Self> {
        let [capacity, heads, dim] = shape;
        let empty = || Tensor::zeros_on(stream, dtype, &[1, capacity, heads, dim]);
        // Loads of 16 bytes where all rows begin at multiples.
        let width = if (heads * dim).is_multiple_of(8) { 16 / dtype.bytes() as u32 } else { 1 };
        let append = record(&Append { dtype, width }, stream.device().target())?;
        Ok(Self { append, width, k: empty()?, v: empty()? })
    }

    /// Adds the keys and values `[1, tokens, num_kv_heads, head_dim]` of new tokens.
    pub(crate) fn append(
        &mut self,
        stream: &Stream,
        k: &Tensor,
        v: &Tensor,
        places: &Places<'_>,
    ) -> Result<()> {
        let &[_, capacity, heads, dim] = self.k.shape() else { unreachable!("a cache has four dimensions") };
        let (row, n, capacity) = ((heads * dim) as u64, k.len() as u64, capacity as u64);
        let grid = elementwise_grid(n, 256, self.width).ok_or("too many new tokens")?;
        let args = AppendArgs {
            k: In::slot(0),
            v: In::slot(1),
            positions: In::slot(2),
            k_cache: Out::slot(3),
            v_cache: Out::slot(4),
            row,
            n,
            capacity,
        };
        let step = LaunchStep::new(self.append.clone(), grid, args.values());
        let tensors =
            [k.binding(), v.binding(), places.positions.binding(), self.k.binding(), self.v.binding()];
        Ok(stream.launch(&step, &tensors)?)
    }

    /// Attention of queries `[1, tokens, heads, head_dim]`, of which each sees the tokens up to its own.
    pub(crate) fn attend(&self, stream: &Stream, q: &Tensor, places: &Places<'_>) -> Result<Tensor> {
        let scores = Scores { causal: true, key_lengths: Some(places.length), ..Scores::default() };
        Ok(attention(stream, q, &self.k, &self.v, scores)?.o)
    }
}

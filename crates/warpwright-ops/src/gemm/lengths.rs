//! How long the tensors of a product are.

use crate::PlanError;

/// Elements of the operands and of the result.
pub(crate) struct Lengths {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) y: usize,
}

/// A tensor of matrices, row after row.
pub(crate) struct Matrices {
    pub(crate) op: &'static str,
    /// The parameter that says how many elements are from one row to the next, and what it says.
    pub(crate) leading: (&'static str, usize),
    /// Rows and columns of a matrix.
    pub(crate) sides: [usize; 2],
    /// Matrices, and elements from one to the next.
    pub(crate) count: usize,
    pub(crate) stride: usize,
    /// Bytes of an element.
    pub(crate) size: usize,
}

impl Matrices {
    /// Elements from the first to the last.
    ///
    /// # Errors
    /// [`PlanError::Parameter`] if rows overlap, or the bytes are more than an `i64` counts.
    pub(crate) fn len(&self) -> Result<usize, PlanError> {
        let Self { op, leading: (name, leading), sides: [rows, cols], count, stride, size } = *self;
        if leading < cols {
            return Err(PlanError::refused(
                op,
                name,
                leading,
                "at least the columns of the matrix in memory",
            ));
        }
        if rows == 0 || cols == 0 || count == 0 {
            return Ok(0);
        }
        let matrix = (rows - 1).checked_mul(leading).and_then(|before| before.checked_add(cols));
        matrix
            .zip((count - 1).checked_mul(stride))
            .and_then(|(matrix, before)| matrix.checked_add(before))
            .filter(|len| len.checked_mul(size).is_some_and(|bytes| i64::try_from(bytes).is_ok()))
            .ok_or_else(|| PlanError::refused(op, name, leading, "such that the tensor is addressable"))
    }
}

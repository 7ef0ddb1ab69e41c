//! How far into a prompt a rank can reuse what it holds. Numbers that must not be added, and say so.

use kvtide::ReachTokens;
use pyo3::{basic::CompareOp, exceptions::PyTypeError, prelude::*};

use crate::{args, error::Fault};

const NO_SUM: &str = "reaches are never to be added: each tier's number already contains those of all faster tiers, and two \
                      prompts or ranks share no tokens that a sum would mean; use one of gpu, host, disk and external";
const NO_NUMBER: &str = "a reach is no number: compare one of gpu, host, disk and external";

/// Leading tokens of a prompt that a rank could reuse, using a tier **and all faster ones**.
///
/// The four numbers are cumulative, `gpu <= host <= disk <= external`: each already contains those before it, so that adding
/// them counts the same tokens several times. Hence a `Reach` refuses `+`, `sum()` and comparison with a number. Two of them
/// compare by `gpu`, then `host`, then `disk`, then `external`: to prefer more on the GPU is the usual choice.
///
/// Where nothing is known of a rank there is no `Reach` but `None`, which is not a reach of 0.
#[pyclass(frozen, module = "kvtide")]
#[derive(Clone, Copy)]
pub(crate) struct Reach(pub(crate) ReachTokens);

impl Reach {
    fn numbers(&self) -> [u32; 4] {
        let ReachTokens { gpu, host, disk, external } = self.0;
        [gpu, host, disk, external]
    }
}

#[pymethods]
impl Reach {
    #[new]
    #[pyo3(signature = (gpu, host, disk, external))]
    fn new(
        #[pyo3(from_py_with = args::whole)] gpu: u32,
        #[pyo3(from_py_with = args::whole)] host: u32,
        #[pyo3(from_py_with = args::whole)] disk: u32,
        #[pyo3(from_py_with = args::whole)] external: u32,
    ) -> PyResult<Reach> {
        let reach = Reach(ReachTokens { gpu, host, disk, external });
        if reach.numbers().is_sorted() {
            return Ok(reach);
        }
        let got = format!("{gpu}, {host}, {disk}, {external}");
        Err(Fault::invalid("a reach", got, "gpu <= host <= disk <= external").into())
    }

    /// Tokens on the GPU.
    #[getter]
    fn gpu(&self) -> u32 {
        self.0.gpu
    }

    /// Tokens on the GPU or in host memory.
    #[getter]
    fn host(&self) -> u32 {
        self.0.host
    }

    /// Tokens on the GPU, in host memory or on disk.
    #[getter]
    fn disk(&self) -> u32 {
        self.0.disk
    }

    /// Tokens anywhere, the shared store included.
    #[getter]
    fn external(&self) -> u32 {
        self.0.external
    }

    fn __add__(&self, _other: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(PyTypeError::new_err(NO_SUM))
    }

    fn __radd__(&self, _other: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(PyTypeError::new_err(NO_SUM))
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<bool> {
        match (other.cast::<Reach>(), op) {
            (Ok(other), _) => Ok(op.matches(self.numbers().cmp(&other.get().numbers()))),
            (Err(_), CompareOp::Eq) => Ok(false),
            (Err(_), CompareOp::Ne) => Ok(true),
            (Err(_), CompareOp::Lt | CompareOp::Le | CompareOp::Gt | CompareOp::Ge) => {
                Err(PyTypeError::new_err(NO_NUMBER))
            }
        }
    }

    fn __hash__(&self) -> u64 {
        let [gpu, host, disk, external] = self.numbers().map(u64::from);
        (gpu << 48) ^ (host << 32) ^ (disk << 16) ^ external
    }

    pub(crate) fn __repr__(&self) -> String {
        let [gpu, host, disk, external] = self.numbers();
        format!("Reach(gpu={gpu}, host={host}, disk={disk}, external={external})")
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyAny>, (u32, u32, u32, u32)) {
        let ReachTokens { gpu, host, disk, external } = slf.get().0;
        (slf.get_type().into_any(), (gpu, host, disk, external))
    }
}

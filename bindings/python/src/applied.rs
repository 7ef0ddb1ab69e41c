//! What a message or some events did.

use pyo3::{prelude::*, types::PyDict};

use crate::error::{Fault, Kind};

/// What was applied, passed over and refused, counted.
#[pyclass(frozen, module = "kvtide")]
pub(crate) struct Applied(kvtide::Applied);

impl Applied {
    /// Of what was applied as far as it could be. Where all of it was refused it is an error.
    pub(crate) fn of(applied: kvtide::Applied, most_ranks: usize) -> Result<Applied, Fault> {
        let refused = applied.refused_events();
        if applied.events > 0 || refused == 0 {
            return Ok(Applied(applied));
        }
        let got = format!("{refused} events");
        Err(match applied.crowded {
            0 => Fault::new(
                Kind::Refused,
                "all events were refused",
                got,
                "events of ranks that no other source feeds",
            ),
            1.. => Fault::new(
                Kind::TooManyRanks,
                "no room for another rank",
                got,
                format!("events of at most {most_ranks} ranks"),
            ),
        })
    }
}

#[pymethods]
impl Applied {
    /// Events applied.
    #[getter]
    fn applied_events(&self) -> u64 {
        self.0.events
    }

    /// Events passed over: of unknown types, tiers or residency.
    #[getter]
    fn ignored_events(&self) -> u64 {
        self.0.ignored
    }

    /// Events, frames or batches taken before, or too late.
    #[getter]
    fn repeated_events(&self) -> u64 {
        self.0.repeated
    }

    /// Events refused: another source feeds their rank, or there is no room for it.
    #[getter]
    fn refused_events(&self) -> u64 {
        self.0.refused_events()
    }

    /// Events or batches found to be lost.
    #[getter]
    fn missing_events(&self) -> u64 {
        self.0.missing
    }

    /// Blocks stored.
    #[getter]
    fn stored_blocks(&self) -> usize {
        self.0.blocks.stored
    }

    /// Blocks removed.
    #[getter]
    fn removed_blocks(&self) -> usize {
        self.0.blocks.removed
    }

    /// Blocks to be removed that were not held.
    #[getter]
    fn unknown_blocks(&self) -> usize {
        self.0.blocks.unknown
    }

    /// Blocks that wait for their parent or their content.
    #[getter]
    fn parked_blocks(&self) -> usize {
        self.0.blocks.parked
    }

    /// The same as a dictionary, by these names.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("applied_events", self.applied_events())?;
        dict.set_item("ignored_events", self.ignored_events())?;
        dict.set_item("repeated_events", self.repeated_events())?;
        dict.set_item("refused_events", self.refused_events())?;
        dict.set_item("missing_events", self.missing_events())?;
        dict.set_item("stored_blocks", self.stored_blocks())?;
        dict.set_item("removed_blocks", self.removed_blocks())?;
        dict.set_item("unknown_blocks", self.unknown_blocks())?;
        dict.set_item("parked_blocks", self.parked_blocks())?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Applied({})", self.to_dict(py)?.repr()?))
    }
}

"""Names of other packages, over kvtide."""

//! What of a plan may not change once its first stage has run.

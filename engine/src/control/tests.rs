//! Tests of the control side.

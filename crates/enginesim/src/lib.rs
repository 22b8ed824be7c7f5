//! enginesim

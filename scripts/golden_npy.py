#!/usr/bin/env python3
"""Writes spec/golden/arrays.npz, arrays_deflated.npz and version2.npy: arrays of every kind that numpy has and LUDA reads.

The values stand in spec/npy_spec.lua as well. Run from the root of the tree where numpy is installed.
"""
import numpy as np

arrays = {
    "f64": np.array([[1.5, -2.25, 0], [1e300, -1e-300, 0.1]]),
    "f32": np.array([1.5, -0.25, 2.0**127], "f4"),
    "f16": np.array([1.5, -65504, 2.0**-24], "f2"),
    "i64": np.array([-(2**62), 2**53 - 1], "i8"),
    "i32": np.array([-(2**31), 2**31 - 1], "i4"),
    "i16": np.array([-(2**15), 2**15 - 1], "i2"),
    "i8": np.array([-128, 127], "i1"),
    "u8": np.array([0, 255], "u1"),
    "bool": np.array([True, False, True]),
    "u16": np.array([1, 65535, 256], "u2"),
    "u32": np.array([1, 2**32 - 1, 65536], "u4"),
    "u64": np.array([1, 2**40], "u8"),
    "big_f64": np.array([[1, 2], [3, 4.5]], ">f8"),
    "big_i16": np.array([1, -2, 256], ">i2"),
    "big_u32": np.array([1, 2**32 - 2], ">u4"),
    "columns": np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
    "columns_big": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    "single": np.array(7.0),
    "empty": np.zeros((0, 3), "f4"),
    "long": np.arange(5000, dtype="i2"),
}
np.savez("spec/golden/arrays.npz", **arrays)
np.savez_compressed("spec/golden/arrays_deflated.npz", **arrays)
with open("spec/golden/version2.npy", "wb") as file:
    np.lib.format.write_array(file, np.array([[1, 2, 3]], "i4"), version=(2, 0))

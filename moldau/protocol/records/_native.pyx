# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Record encoding and decoding, compiled: the same functions as `pure`, plus flat columns.

Owns speed only. Same acceptance as `pure`, same `InvalidBatch` reasons; tests feed both the same
mutated batches. Invariant: every read is checked against the end of the record (itself checked
against the end of the section) and every write against its buffer's capacity, also when another
thread changes an input buffer during a call: no length is read twice and trusted once.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
    uint64_t,
)
from libc.string cimport memcpy, memset

from moldau.protocol.records.cursor_pure import RECORD_SLOTS, check_slots
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.pure import check_consumed, check_plausible_count
from moldau.protocol.records.record import Record

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    /* A Record is filled through its slot descriptors: its __init__ costs more than the parse. */
    static PyObject *moldau_allocate(PyObject *type) {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    }
    static int moldau_set_slot(PyObject *slot, PyObject *target, PyObject *value) {
        descrsetfunc setter = Py_TYPE(slot)->tp_descr_set;
        if (setter == NULL) {
            PyErr_SetString(PyExc_TypeError, "Record has an attribute that is not a slot");
            return -1;
        }
        return setter(slot, target, value);
    }
    """
    object moldau_allocate(object type)
    int moldau_set_slot(object slot, object target, object value) except -1

cdef object _offset_slot = Record.__dict__["offset"]
cdef object _timestamp_slot = Record.__dict__["timestamp_ms"]
cdef object _key_slot = Record.__dict__["key"]
cdef object _value_slot = Record.__dict__["value"]
cdef object _headers_slot = Record.__dict__["headers"]

cdef enum:
    MAX_VARINT32 = 5
    MAX_VARINT64 = 10
    OK = 0
    MALFORMED = 1
    EXHAUSTED = 2
    UNORDERED = 3
    NO_KEY = 4
    NO_ROOM = 5
    FIRST_KEY_BYTES = 65536


# Known to `_implementation` too: both change when a function is added or changes its arguments.
REVISION = 4

include "_native_read.pxi"
include "_native_write.pxi"
include "_native_buffer.pxi"
include "_native_columns.pxi"
include "_native_cursor.pxi"
include "_native_rows.pxi"
include "_native_keys.pxi"
include "_native_partitions.pxi"

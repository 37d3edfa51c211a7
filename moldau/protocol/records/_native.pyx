# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Record encoding and decoding, compiled: the same functions as `pure`, plus flat columns.

Owns speed only. Same acceptance as `pure`, same `InvalidBatch` reasons; tests feed both the same
mutated batches. Invariant: every read is checked against the end of the record (itself checked
against the end of the section) and every write against its buffer's capacity, also when another
thread changes an input buffer meanwhile: no length is read twice and trusted once.
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
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

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


# ---- varints and records, read ----------------------------------------------------------------

cdef inline bint _read_varint(
    const uint8_t *data, Py_ssize_t *position, Py_ssize_t end, int32_t *value
) noexcept nogil:
    """Zigzag varint of at most 5 bytes and 32 bits before `end`; false when there is none."""
    cdef Py_ssize_t at = position[0]
    cdef uint64_t bits = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 7 * MAX_VARINT32:
        if at >= end:
            return False
        byte = data[at]
        at += 1
        bits |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            if bits > <uint64_t>0xFFFFFFFF:
                return False
            value[0] = <int32_t>(<int64_t>(bits >> 1) ^ -(<int64_t>(bits & 1)))
            position[0] = at
            return True
        shift += 7
    return False


cdef inline bint _read_varlong(
    const uint8_t *data, Py_ssize_t *position, Py_ssize_t end, int64_t *value
) noexcept nogil:
    """Zigzag varint of at most 10 bytes and 64 bits before `end`; false when there is none."""
    cdef Py_ssize_t at = position[0]
    cdef uint64_t bits = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 7 * MAX_VARINT64:
        if at >= end:
            return False
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            return False
        bits |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            value[0] = (<int64_t>(bits >> 1)) ^ -(<int64_t>(bits & 1))
            position[0] = at
            return True
        shift += 7
    return False


cdef struct Span:
    int64_t timestamp_ms
    int32_t offset_delta
    Py_ssize_t key_at
    int32_t key_size
    Py_ssize_t value_at
    int32_t value_size
    Py_ssize_t headers_at
    int32_t header_count
    int64_t header_key_bytes
    int64_t header_value_bytes
    Py_ssize_t end


cdef inline bint _read_piece(
    const uint8_t *data, Py_ssize_t *position, Py_ssize_t end, Py_ssize_t *at, int32_t *size
) noexcept nogil:
    """Length-prefixed bytes, -1 for null, wholly before `end`."""
    if not _read_varint(data, position, end, size):
        return False
    at[0] = position[0]
    if size[0] < 0:
        return size[0] == -1
    if size[0] > end - position[0]:
        return False
    position[0] += size[0]
    return True


cdef inline int _read_record(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *position, int64_t base_timestamp_ms, Span *span
) noexcept nogil:
    """The next record's fields as positions; OK, MALFORMED, or EXHAUSTED at the section's end."""
    cdef Py_ssize_t at = position[0]
    cdef Py_ssize_t piece_at
    cdef int32_t length, piece_size
    cdef int64_t delta
    cdef int32_t index
    if at >= size:
        return EXHAUSTED
    if not _read_varint(data, &at, size, &length):
        return MALFORMED
    if length < 0 or length > size - at:
        return MALFORMED
    span.end = at + length
    at += 1  # the record's attributes: no bit is defined
    if not _read_varlong(data, &at, span.end, &delta):
        return MALFORMED
    if delta > 0:
        if base_timestamp_ms > INT64_MAX - delta:
            return MALFORMED
    elif base_timestamp_ms < INT64_MIN - delta:
        return MALFORMED
    span.timestamp_ms = base_timestamp_ms + delta
    if not _read_varint(data, &at, span.end, &span.offset_delta):
        return MALFORMED
    if not _read_piece(data, &at, span.end, &span.key_at, &span.key_size):
        return MALFORMED
    if not _read_piece(data, &at, span.end, &span.value_at, &span.value_size):
        return MALFORMED
    if not _read_varint(data, &at, span.end, &span.header_count):
        return MALFORMED
    if span.header_count < 0:
        return MALFORMED
    span.headers_at = at
    span.header_key_bytes = 0
    span.header_value_bytes = 0
    for index in range(span.header_count):
        if not _read_piece(data, &at, span.end, &piece_at, &piece_size) or piece_size < 0:
            return MALFORMED
        span.header_key_bytes += piece_size
        if not _read_piece(data, &at, span.end, &piece_at, &piece_size):
            return MALFORMED
        if piece_size > 0:
            span.header_value_bytes += piece_size
    if at != span.end:
        return MALFORMED
    position[0] = at
    return OK


cdef object _malformed(Py_ssize_t index):
    return InvalidBatch(
        InvalidBatchReason.BAD_RECORD,
        "the record's fields do not end where its length says",
        record_index=index,
    )


cdef inline object _bytes_at(const uint8_t *data, Py_ssize_t at, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>data + at, size)


cdef tuple _headers_at(const uint8_t *data, Span *span):
    """Header pairs of a record that `_read_record` accepted, checked again all the same."""
    cdef Py_ssize_t at = span.headers_at
    cdef Py_ssize_t key_at, value_at
    cdef int32_t key_size, value_size
    cdef list headers = []
    for _ in range(span.header_count):
        if not _read_piece(data, &at, span.end, &key_at, &key_size) or key_size < 0:
            raise InvalidBatch(InvalidBatchReason.BAD_RECORD, "a header changed meanwhile")
        if not _read_piece(data, &at, span.end, &value_at, &value_size):
            raise InvalidBatch(InvalidBatchReason.BAD_RECORD, "a header changed meanwhile")
        headers.append(
            (
                PyUnicode_DecodeUTF8(<char *>data + key_at, key_size, "replace"),
                _bytes_at(data, value_at, value_size),
            )
        )
    return tuple(headers)


def decode_records(
    section,
    record_count,
    int64_t base_offset,
    int64_t base_timestamp_ms,
    append_time_ms,
):
    """See `pure.decode_records`."""
    cdef Py_buffer view
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t index, count
    cdef Span span
    cdef int status
    cdef list records = []
    cdef const uint8_t *data
    cdef object record
    PyObject_GetBuffer(section, &view, PyBUF_SIMPLE)
    try:
        check_plausible_count(view.len, record_count)
        count = record_count
        data = <const uint8_t *>view.buf
        for index in range(count):
            status = _read_record(data, view.len, &position, base_timestamp_ms, &span)
            if status != OK:
                if status == EXHAUSTED:
                    break
                raise _malformed(index)
            record = moldau_allocate(Record)
            moldau_set_slot(_offset_slot, record, base_offset + span.offset_delta)
            moldau_set_slot(
                _timestamp_slot,
                record,
                span.timestamp_ms if append_time_ms is None else append_time_ms,
            )
            moldau_set_slot(_key_slot, record, _bytes_at(data, span.key_at, span.key_size))
            moldau_set_slot(_value_slot, record, _bytes_at(data, span.value_at, span.value_size))
            moldau_set_slot(
                _headers_slot, record, _headers_at(data, &span) if span.header_count else ()
            )
            records.append(record)
        check_consumed(len(records), record_count, view.len - position)
    finally:
        PyBuffer_Release(&view)
    return records


def scan_records(section, record_count, int64_t base_timestamp_ms, bint require_keys):
    """See `pure.scan_records`."""
    cdef Py_buffer view
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t count
    cdef Py_ssize_t bad_at = -1
    cdef int bad = OK
    cdef int32_t bad_delta = 0
    cdef Span span
    cdef int status = OK
    cdef int64_t lowest = -1
    cdef int64_t highest = -1
    cdef Py_ssize_t highest_at = -1
    PyObject_GetBuffer(section, &view, PyBUF_SIMPLE)
    try:
        check_plausible_count(view.len, record_count)
        count = record_count
        with nogil:
            while index < count:
                status = _read_record(
                    <const uint8_t *>view.buf, view.len, &position, base_timestamp_ms, &span
                )
                if status != OK:
                    break
                # A record that cannot be read comes before one that is out of order, wherever.
                if bad == OK:
                    if span.offset_delta != index:
                        bad = UNORDERED
                        bad_delta = span.offset_delta
                        bad_at = index
                    elif require_keys and span.key_size < 0:
                        bad = NO_KEY
                        bad_at = index
                if index == 0 or span.timestamp_ms < lowest:
                    lowest = span.timestamp_ms
                if index == 0 or span.timestamp_ms > highest:
                    highest = span.timestamp_ms
                    highest_at = index
                index += 1
        if status == MALFORMED:
            raise _malformed(index)
        check_consumed(index, record_count, view.len - position)
    finally:
        PyBuffer_Release(&view)
    if bad == UNORDERED:
        raise InvalidBatch(
            InvalidBatchReason.BAD_OFFSET,
            f"offset delta {bad_delta} where {bad_at} is due",
            record_index=bad_at,
        )
    if bad == NO_KEY:
        raise InvalidBatch(
            InvalidBatchReason.MISSING_KEY,
            "a compacted topic takes no record without a key",
            record_index=bad_at,
        )
    return lowest, highest, highest_at


# ---- records, written -------------------------------------------------------------------------

cdef inline uint64_t _zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int _varint_size(int64_t value) noexcept nogil:
    cdef uint64_t bits = _zigzag(value)
    cdef int size = 1
    while bits >= 0x80:
        bits >>= 7
        size += 1
    return size


cdef inline uint8_t *_write_varint(uint8_t *out, int64_t value) noexcept nogil:
    cdef uint64_t bits = _zigzag(value)
    while bits >= 0x80:
        out[0] = <uint8_t>(bits | 0x80)
        out += 1
        bits >>= 7
    out[0] = <uint8_t>bits
    return out + 1


cdef inline int64_t _piece_bytes(int64_t size) noexcept nogil:
    """Encoded size of a length-prefixed piece, -1 for null."""
    return 1 if size < 0 else _varint_size(size) + size


cdef inline uint8_t *_write_piece(uint8_t *out, const uint8_t *data, int64_t size) noexcept nogil:
    out = _write_varint(out, size)
    if size > 0:
        memcpy(out, data, size)
        out += size
    return out


cdef class _Piece:
    """Bytes of a key or value, held while they are copied. size -1 is null."""

    cdef Py_buffer view
    cdef bint held
    cdef const uint8_t *data
    cdef Py_ssize_t size

    cdef int take(self, object value) except -1:
        if value is None:
            self.data = NULL
            self.size = -1
        elif type(value) is bytes:
            self.data = <const uint8_t *>PyBytes_AS_STRING(value)
            self.size = PyBytes_GET_SIZE(value)
        else:
            PyObject_GetBuffer(value, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.data = <const uint8_t *>self.view.buf
            self.size = self.view.len
        return 0

    cdef void drop(self) noexcept:
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)

    def __dealloc__(self):
        self.drop()


cdef bytes _encode_headers(object headers):
    cdef bytearray out = bytearray()
    cdef uint8_t varint[MAX_VARINT64]
    cdef Py_ssize_t size
    cdef const char *text
    cdef _Piece piece = _Piece()
    out += varint[: _write_varint(varint, len(headers)) - varint]
    for key, value in headers:
        text = PyUnicode_AsUTF8AndSize(key, &size)
        out += varint[: _write_varint(varint, size) - varint]
        out += text[:size]
        piece.take(value)
        try:
            out += varint[: _write_varint(varint, piece.size) - varint]
            if piece.size > 0:
                out += piece.data[: piece.size]
        finally:
            piece.drop()
    return bytes(out)


cdef int64_t _body_size(
    int32_t offset_delta, int64_t timestamp_delta, int64_t key, int64_t value, int64_t headers
) except -1:
    cdef int64_t size = (
        1
        + _varint_size(timestamp_delta)
        + _varint_size(offset_delta)
        + _piece_bytes(key)
        + _piece_bytes(value)
        + headers
    )
    if size > INT32_MAX:
        raise OverflowError(f"a record of {size} bytes")
    return size


cdef inline uint8_t *_write_record(
    uint8_t *out,
    int64_t body_size,
    int32_t offset_delta,
    int64_t timestamp_delta,
    const uint8_t *key,
    int64_t key_size,
    const uint8_t *value,
    int64_t value_size,
) noexcept nogil:
    """All of a record but its headers."""
    out = _write_varint(out, body_size)
    out[0] = 0
    out = _write_varint(out + 1, timestamp_delta)
    out = _write_varint(out, offset_delta)
    out = _write_piece(out, key, key_size)
    return _write_piece(out, value, value_size)


cdef bytes _NO_HEADERS = b"\x00"


def encode_record(
    int32_t offset_delta, int64_t timestamp_delta_ms, key, value, headers
):
    """See `pure.encode_record`."""
    cdef _Piece key_piece = _Piece()
    cdef _Piece value_piece = _Piece()
    cdef bytes header_bytes = _encode_headers(headers) if headers else _NO_HEADERS
    cdef int64_t body_size
    cdef bytes encoded
    cdef uint8_t *out
    try:
        key_piece.take(key)
        value_piece.take(value)
        body_size = _body_size(
            offset_delta,
            timestamp_delta_ms,
            key_piece.size,
            value_piece.size,
            PyBytes_GET_SIZE(header_bytes),
        )
        encoded = PyBytes_FromStringAndSize(NULL, body_size + _varint_size(body_size))
        out = _write_record(
            <uint8_t *>PyBytes_AS_STRING(encoded),
            body_size,
            offset_delta,
            timestamp_delta_ms,
            key_piece.data,
            key_piece.size,
            value_piece.data,
            value_piece.size,
        )
        memcpy(out, PyBytes_AS_STRING(header_bytes), PyBytes_GET_SIZE(header_bytes))
    finally:
        key_piece.drop()
        value_piece.drop()
    return encoded


def encode_records(bytearray out, records, base_offset, int64_t base_timestamp_ms):
    """See `pure.encode_records`."""
    cdef Py_ssize_t start = PyByteArray_GET_SIZE(out)
    cdef Py_ssize_t position = start
    cdef Py_ssize_t need
    cdef int32_t index = 0
    cdef int32_t offset_delta
    cdef int64_t timestamp_delta, timestamp_ms, body_size
    cdef bint by_index = base_offset is None
    cdef int64_t base = 0 if by_index else base_offset
    cdef bytes header_bytes
    cdef object headers
    cdef uint8_t *target
    cdef _Piece key = _Piece()
    cdef _Piece value = _Piece()
    cdef bint done = False
    try:
        for record in records:
            key.take(record.key)
            value.take(record.value)
            headers = record.headers
            header_bytes = _encode_headers(headers) if headers else _NO_HEADERS
            timestamp_ms = record.timestamp_ms
            timestamp_delta = _difference(timestamp_ms, base_timestamp_ms)
            offset_delta = index if by_index else <object>(record.offset - base)
            body_size = _body_size(
                offset_delta, timestamp_delta, key.size, value.size, PyBytes_GET_SIZE(header_bytes)
            )
            need = position + body_size + _varint_size(body_size)
            if need > PyByteArray_GET_SIZE(out):
                PyByteArray_Resize(out, need + (need >> 1))
            target = <uint8_t *>PyByteArray_AS_STRING(out) + position
            target = _write_record(
                target,
                body_size,
                offset_delta,
                timestamp_delta,
                key.data,
                key.size,
                value.data,
                value.size,
            )
            memcpy(target, PyBytes_AS_STRING(header_bytes), PyBytes_GET_SIZE(header_bytes))
            key.drop()
            value.drop()
            position = need
            index += 1
        done = True
    finally:
        key.drop()
        value.drop()
        PyByteArray_Resize(out, position if done else start)


cdef inline int64_t _difference(int64_t left, int64_t right) except? -1:
    if (right > 0 and left < INT64_MIN + right) or (right < 0 and left > INT64_MAX + right):
        raise OverflowError("timestamps too far apart for one batch")
    return left - right


# ---- columns ----------------------------------------------------------------------------------

cdef class _Section:
    """A batch's uncompressed records, held while they are read."""

    cdef Py_buffer view
    cdef bint held
    cdef Py_ssize_t count
    cdef int64_t base_offset
    cdef int64_t base_timestamp_ms
    cdef bint has_append_time
    cdef int64_t append_time_ms

    def __cinit__(self, section, record_count, base_offset, base_timestamp_ms, append_time_ms):
        PyObject_GetBuffer(section, &self.view, PyBUF_SIMPLE)
        self.held = True
        check_plausible_count(self.view.len, record_count)
        self.count = record_count
        self.base_offset = base_offset
        self.base_timestamp_ms = base_timestamp_ms
        self.has_append_time = append_time_ms is not None
        self.append_time_ms = -1 if append_time_ms is None else append_time_ms

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef struct Columns:
    Py_ssize_t capacity
    Py_ssize_t data_capacity
    int64_t *offsets
    int64_t *timestamps
    int32_t *key_ends
    uint8_t *key_validity
    uint8_t *key_data
    int32_t *value_ends
    uint8_t *value_validity
    uint8_t *value_data
    int32_t *header_ends
    Py_ssize_t row
    int64_t key_bytes
    int64_t value_bytes
    Py_ssize_t null_keys
    Py_ssize_t null_values
    int64_t header_count
    int64_t header_key_bytes
    int64_t header_value_bytes


cdef inline bytearray _uninitialized(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef bytearray _all_valid(Py_ssize_t count):
    """A validity bitmap of `count` ones, the padding bits zero."""
    cdef bytearray bitmap = _uninitialized((count + 7) // 8)
    cdef uint8_t *bits = <uint8_t *>PyByteArray_AS_STRING(bitmap)
    memset(bits, 0xFF, PyByteArray_GET_SIZE(bitmap))
    if count & 7:
        bits[count >> 3] = <uint8_t>((1 << (count & 7)) - 1)
    return bitmap


cdef int _read_columns(
    const uint8_t *data,
    Py_ssize_t size,
    _SectionFacts facts,
    Columns *columns,
    Py_ssize_t *position,
    Py_ssize_t *index,
) noexcept nogil:
    """One section into the columns, behind what is there."""
    cdef Span span
    cdef Py_ssize_t row
    cdef int status
    while index[0] < facts.count:
        status = _read_record(data, size, position, facts.base_timestamp_ms, &span)
        if status != OK:
            return status
        row = columns.row
        if row >= columns.capacity:
            return NO_ROOM
        columns.offsets[row] = facts.base_offset + span.offset_delta
        columns.timestamps[row] = (
            facts.append_time_ms if facts.has_append_time else span.timestamp_ms
        )
        if span.key_size >= 0:
            if columns.key_bytes + span.key_size > columns.data_capacity:
                return NO_ROOM
            memcpy(columns.key_data + columns.key_bytes, data + span.key_at, span.key_size)
            columns.key_bytes += span.key_size
        else:
            columns.key_validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
            columns.null_keys += 1
        if span.value_size >= 0:
            if columns.value_bytes + span.value_size > columns.data_capacity:
                return NO_ROOM
            memcpy(columns.value_data + columns.value_bytes, data + span.value_at, span.value_size)
            columns.value_bytes += span.value_size
        else:
            columns.value_validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
            columns.null_values += 1
        columns.header_count += span.header_count
        columns.header_key_bytes += span.header_key_bytes
        columns.header_value_bytes += span.header_value_bytes
        columns.row = row + 1
        columns.key_ends[columns.row] = <int32_t>columns.key_bytes
        columns.value_ends[columns.row] = <int32_t>columns.value_bytes
        columns.header_ends[columns.row] = <int32_t>columns.header_count
        index[0] += 1
    return OK


cdef struct _SectionFacts:
    Py_ssize_t count
    int64_t base_offset
    int64_t base_timestamp_ms
    bint has_append_time
    int64_t append_time_ms


def decode_column_sections(list sections):
    """See `columns_pure.decode_column_sections`."""
    cdef list held = []
    cdef Py_ssize_t total_count = 0
    cdef Py_ssize_t total_bytes = 0
    cdef _Section section
    cdef Columns columns
    cdef _SectionFacts facts
    cdef Py_ssize_t position, index
    cdef int status
    cdef const uint8_t *data
    cdef Py_ssize_t size
    for batch_position, *arguments in sections:
        try:
            section = _Section(*arguments)
        except InvalidBatch as error:
            raise error.at(batch_position)
        held.append(section)
        total_count += section.count
        total_bytes += section.view.len
    if total_bytes > INT32_MAX:
        raise InvalidBatch(
            InvalidBatchReason.TOO_LARGE, f"{total_bytes} bytes do not fit 32-bit columns"
        )
    memset(&columns, 0, sizeof(Columns))
    columns.capacity = total_count
    columns.data_capacity = total_bytes
    offsets = _uninitialized(8 * total_count)
    timestamps = _uninitialized(8 * total_count)
    key_ends = _uninitialized(4 * (total_count + 1))
    value_ends = _uninitialized(4 * (total_count + 1))
    header_ends = _uninitialized(4 * (total_count + 1))
    key_validity = _all_valid(total_count)
    value_validity = _all_valid(total_count)
    key_data = _uninitialized(total_bytes)
    value_data = _uninitialized(total_bytes)
    columns.offsets = <int64_t *>PyByteArray_AS_STRING(offsets)
    columns.timestamps = <int64_t *>PyByteArray_AS_STRING(timestamps)
    columns.key_ends = <int32_t *>PyByteArray_AS_STRING(key_ends)
    columns.value_ends = <int32_t *>PyByteArray_AS_STRING(value_ends)
    columns.header_ends = <int32_t *>PyByteArray_AS_STRING(header_ends)
    columns.key_validity = <uint8_t *>PyByteArray_AS_STRING(key_validity)
    columns.value_validity = <uint8_t *>PyByteArray_AS_STRING(value_validity)
    columns.key_data = <uint8_t *>PyByteArray_AS_STRING(key_data)
    columns.value_data = <uint8_t *>PyByteArray_AS_STRING(value_data)
    columns.key_ends[0] = columns.value_ends[0] = columns.header_ends[0] = 0
    for number, section in enumerate(held):
        facts.count = section.count
        facts.base_offset = section.base_offset
        facts.base_timestamp_ms = section.base_timestamp_ms
        facts.has_append_time = section.has_append_time
        facts.append_time_ms = section.append_time_ms
        data = <const uint8_t *>section.view.buf
        size = section.view.len
        position = index = 0
        with nogil:
            status = _read_columns(data, size, facts, &columns, &position, &index)
        try:
            if status == MALFORMED or status == NO_ROOM:
                raise _malformed(index)
            check_consumed(index, section.count, size - position)
        except InvalidBatch as error:
            raise error.at(sections[number][0])
    PyByteArray_Resize(key_data, columns.key_bytes)
    PyByteArray_Resize(value_data, columns.value_bytes)
    return (
        total_count,
        offsets,
        timestamps,
        (key_ends, key_validity if columns.null_keys else None, key_data),
        (value_ends, value_validity if columns.null_values else None, value_data),
        _decode_header_columns(held, header_ends, &columns) if columns.header_count else None,
    )


cdef tuple _decode_header_columns(list held, bytearray header_ends, Columns *columns):
    """Second walk, only when some record has headers: their keys and values, counted before."""
    cdef int64_t count = columns.header_count
    cdef bytearray key_ends = _uninitialized(4 * (count + 1))
    cdef bytearray value_ends = _uninitialized(4 * (count + 1))
    cdef bytearray key_data = _uninitialized(columns.header_key_bytes)
    cdef bytearray value_data = _uninitialized(columns.header_value_bytes)
    cdef bytearray validity = _all_valid(count)
    cdef int32_t *key_end = <int32_t *>PyByteArray_AS_STRING(key_ends)
    cdef int32_t *value_end = <int32_t *>PyByteArray_AS_STRING(value_ends)
    cdef uint8_t *keys = <uint8_t *>PyByteArray_AS_STRING(key_data)
    cdef uint8_t *values = <uint8_t *>PyByteArray_AS_STRING(value_data)
    cdef uint8_t *valid = <uint8_t *>PyByteArray_AS_STRING(validity)
    cdef const uint8_t *data
    cdef int64_t row = 0
    cdef int64_t key_bytes = 0
    cdef int64_t value_bytes = 0
    cdef Py_ssize_t nulls = 0
    cdef Py_ssize_t position, at, key_at, value_at, record
    cdef int32_t key_size, value_size, header
    cdef bint fits
    cdef Span span
    cdef _Section section
    key_end[0] = value_end[0] = 0
    for section in held:
        data = <const uint8_t *>section.view.buf
        position = 0
        for record in range(section.count):
            fits = (
                _read_record(data, section.view.len, &position, section.base_timestamp_ms, &span)
                == OK
            )
            at = span.headers_at
            for header in range(span.header_count if fits else 0):
                fits = (
                    row < count
                    and _read_piece(data, &at, span.end, &key_at, &key_size)
                    and key_size >= 0
                    and _read_piece(data, &at, span.end, &value_at, &value_size)
                    and key_bytes + key_size <= columns.header_key_bytes
                    and value_bytes + max(value_size, 0) <= columns.header_value_bytes
                )
                if not fits:
                    break
                memcpy(keys + key_bytes, data + key_at, key_size)
                key_bytes += key_size
                if value_size >= 0:
                    memcpy(values + value_bytes, data + value_at, value_size)
                    value_bytes += value_size
                else:
                    valid[row >> 3] &= <uint8_t>~(1 << (row & 7))
                    nulls += 1
                row += 1
                key_end[row] = <int32_t>key_bytes
                value_end[row] = <int32_t>value_bytes
            if not fits:
                raise _malformed(record)
    if row != count:
        raise InvalidBatch(InvalidBatchReason.BAD_RECORD, "headers changed meanwhile")
    return header_ends, key_ends, key_data, (value_ends, validity if nulls else None, value_data)


cdef class _Flat:
    """A flat buffer of the caller's, or nothing."""

    cdef Py_buffer view
    cdef bint held
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self, buffer):
        if buffer is not None:
            PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.data = <const uint8_t *>self.view.buf
            self.size = self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef struct Flat:
    const uint8_t *data
    Py_ssize_t size


cdef struct Strings:
    Flat ends
    Flat validity
    Flat data


cdef struct Rows:
    Flat timestamps
    Strings keys
    Strings values
    Flat header_ends
    Strings header_keys
    Strings header_values
    int64_t timestamp_ms


cdef inline Flat _flat(_Flat buffer):
    cdef Flat flat
    flat.data = buffer.data
    flat.size = buffer.size
    return flat


cdef inline int32_t _int32_at(Flat *flat, int64_t index) noexcept nogil:
    cdef int32_t value
    memcpy(&value, flat.data + 4 * index, 4)
    return value


cdef inline int _range_at(Flat *ends, int64_t index, int64_t limit, int64_t *begin, int64_t *end) \
        noexcept nogil:
    """Where row `index` lies in its data; MALFORMED unless it is wholly inside `limit`."""
    if index < 0 or 4 * (index + 2) > ends.size:
        return MALFORMED
    begin[0] = _int32_at(ends, index)
    end[0] = _int32_at(ends, index + 1)
    if begin[0] < 0 or end[0] < begin[0] or end[0] > limit:
        return MALFORMED
    return OK


cdef inline int _string_at(
    Strings *strings, int64_t index, const uint8_t **data, int64_t *size
) noexcept nogil:
    """Row `index` of a column of bytes; size -1 for null. A column without offsets is all null."""
    cdef int64_t begin = 0
    cdef int64_t end = 0
    data[0] = NULL
    size[0] = -1
    if strings.ends.data == NULL:
        return OK
    if _range_at(&strings.ends, index, strings.data.size, &begin, &end) != OK:
        return MALFORMED
    if strings.validity.data != NULL:
        if (index >> 3) >= strings.validity.size:
            return MALFORMED
        if not strings.validity.data[index >> 3] >> (index & 7) & 1:
            return OK
    data[0] = strings.data.data + begin
    size[0] = end - begin
    return OK


cdef inline int _timestamp_at(Rows *rows, int64_t index, int64_t *timestamp_ms) noexcept nogil:
    if rows.timestamps.data == NULL:
        timestamp_ms[0] = rows.timestamp_ms
        return OK
    if 8 * (index + 1) > rows.timestamps.size:
        return MALFORMED
    memcpy(timestamp_ms, rows.timestamps.data + 8 * index, 8)
    return OK


cdef inline int _headers_size(Rows *rows, int64_t first, int64_t last, int64_t *size) noexcept nogil:
    """Encoded size of a row's headers, their count included."""
    cdef const uint8_t *data
    cdef int64_t header, piece
    size[0] = _varint_size(last - first)
    for header in range(first, last):
        if _string_at(&rows.header_keys, header, &data, &piece) != OK or piece < 0:
            return MALFORMED
        size[0] += _piece_bytes(piece)
        if _string_at(&rows.header_values, header, &data, &piece) != OK:
            return MALFORMED
        size[0] += _piece_bytes(piece)
    return OK


cdef inline uint8_t *_write_headers(
    Rows *rows, int64_t first, int64_t last, uint8_t *out, uint8_t *limit
) noexcept nogil:
    """The headers of a row; NULL when they are not what `_headers_size` measured."""
    cdef const uint8_t *data
    cdef int64_t header, piece
    out = _write_varint(out, last - first)
    for header in range(first, last):
        if _string_at(&rows.header_keys, header, &data, &piece) != OK or piece < 0:
            return NULL
        if _piece_bytes(piece) > limit - out:
            return NULL
        out = _write_piece(out, data, piece)
        if _string_at(&rows.header_values, header, &data, &piece) != OK:
            return NULL
        if _piece_bytes(piece) > limit - out:
            return NULL
        out = _write_piece(out, data, piece)
    return out if out == limit else NULL


cdef struct Row:
    int64_t timestamp_delta
    int64_t timestamp_ms
    const uint8_t *key
    int64_t key_size
    const uint8_t *value
    int64_t value_size
    int64_t first_header
    int64_t last_header
    int64_t headers_size
    int64_t body_size


cdef inline int _row_at(Rows *rows, int64_t index, int64_t offset_delta, int64_t base, Row *row) \
        noexcept nogil:
    """Everything about row `index` as a record with that offset delta and base timestamp."""
    if _timestamp_at(rows, index, &row.timestamp_ms) != OK:
        return MALFORMED
    if (base > 0 and row.timestamp_ms < INT64_MIN + base) or (
        base < 0 and row.timestamp_ms > INT64_MAX + base
    ):
        return MALFORMED
    row.timestamp_delta = row.timestamp_ms - base
    if _string_at(&rows.keys, index, &row.key, &row.key_size) != OK:
        return MALFORMED
    if _string_at(&rows.values, index, &row.value, &row.value_size) != OK:
        return MALFORMED
    row.first_header = row.last_header = 0
    row.headers_size = 1
    if rows.header_ends.data != NULL:
        if _range_at(
            &rows.header_ends, index, INT32_MAX, &row.first_header, &row.last_header
        ) != OK or _headers_size(rows, row.first_header, row.last_header, &row.headers_size) != OK:
            return MALFORMED
    row.body_size = (
        1
        + _varint_size(row.timestamp_delta)
        + _varint_size(offset_delta)
        + _piece_bytes(row.key_size)
        + _piece_bytes(row.value_size)
        + row.headers_size
    )
    return OK if row.body_size <= INT32_MAX else NO_ROOM


cdef int _measure_rows(
    Rows *rows,
    int64_t start,
    int64_t stop,
    int64_t base,
    int64_t max_bytes,
    int64_t *size,
    int64_t *count,
) noexcept nogil:
    """How many rows from `start` fit into `max_bytes` (one at least) and their exact size."""
    cdef Row row
    cdef int64_t record
    cdef int status
    count[0] = 0
    while start + count[0] < stop:
        status = _row_at(rows, start + count[0], count[0], base, &row)
        if status != OK:
            return status
        record = row.body_size + _varint_size(row.body_size)
        if count[0] and size[0] + record > max_bytes:
            return OK
        size[0] += record
        count[0] += 1
    return OK


cdef int _write_rows(
    Rows *rows, int64_t start, int64_t count, int64_t base, uint8_t *out, uint8_t *limit,
    int64_t *highest
) noexcept nogil:
    """Write `count` rows into exactly `[out, limit)`; MALFORMED when they changed meanwhile."""
    cdef Row row
    cdef int64_t index
    cdef uint8_t *end
    for index in range(count):
        if _row_at(rows, start + index, index, base, &row) != OK:
            return MALFORMED
        if row.body_size + _varint_size(row.body_size) > limit - out:
            return MALFORMED
        end = out + _varint_size(row.body_size) + row.body_size
        out = _write_record(
            out,
            row.body_size,
            <int32_t>index,
            row.timestamp_delta,
            row.key,
            row.key_size,
            row.value,
            row.value_size,
        )
        if row.first_header == row.last_header:
            out[0] = 0
        elif _write_headers(rows, row.first_header, row.last_header, out, end) == NULL:
            return MALFORMED
        out = end
        if index == 0 or row.timestamp_ms > highest[0]:
            highest[0] = row.timestamp_ms
    return OK if out == limit else MALFORMED


cdef int _fill_strings(Strings *strings, list held, object column) except -1:
    cdef _Flat ends = _Flat(column[0])
    cdef _Flat validity = _Flat(column[1])
    cdef _Flat data = _Flat(column[2])
    held += (ends, validity, data)
    strings.ends = _flat(ends)
    strings.validity = _flat(validity)
    strings.data = _flat(data)
    return 0


def encode_rows(
    tuple buffers,
    int64_t start,
    int64_t stop,
    int64_t max_bytes,
    Py_ssize_t header_space,
    int64_t timestamp_ms,
):
    """See `columns_pure.encode_rows`."""
    cdef Rows rows
    cdef list held = []
    cdef _Flat flat
    cdef int64_t base = 0
    cdef int64_t highest = -1
    cdef int64_t size = header_space
    cdef int64_t count = 0
    cdef int status
    cdef bytearray out
    cdef uint8_t *target
    timestamps, keys, values, header_ends, header_keys, header_values = buffers
    memset(&rows, 0, sizeof(Rows))
    rows.timestamp_ms = timestamp_ms
    flat = _Flat(timestamps)
    held.append(flat)
    rows.timestamps = _flat(flat)
    flat = _Flat(header_ends)
    held.append(flat)
    rows.header_ends = _flat(flat)
    _fill_strings(&rows.keys, held, keys)
    _fill_strings(&rows.values, held, values)
    _fill_strings(&rows.header_keys, held, header_keys)
    _fill_strings(&rows.header_values, held, header_values)
    if start < 0 or start >= stop or _timestamp_at(&rows, start, &base) != OK:
        raise ValueError(f"no rows {start}..{stop} in these columns")
    with nogil:
        status = _measure_rows(&rows, start, stop, base, max_bytes, &size, &count)
    if status == MALFORMED:
        raise ValueError(f"row {start + count}: offsets outside the column's buffers")
    if status == NO_ROOM or size > INT32_MAX:
        raise OverflowError(f"row {start + count}: a batch of more than 2 GB")
    out = _uninitialized(size)
    target = <uint8_t *>PyByteArray_AS_STRING(out)
    memset(target, 0, header_space)
    with nogil:
        status = _write_rows(
            &rows, start, count, base, target + header_space, target + size, &highest
        )
    if status != OK:
        raise ValueError("the columns changed while they were encoded")
    return out, start + count, base, highest

# Part of _native.pyx: records, written. Sizes are computed first, then exactly filled.

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

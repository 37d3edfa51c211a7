# Part of _native.pyx: a batch in the making, records written straight into it.

cdef enum:
    HEADER_SPACE = 61
    FIRST_CAPACITY = 512


cdef class RecordBuffer:
    """See `pure.RecordBuffer`."""

    cdef bytearray out
    cdef int64_t limit
    cdef int64_t position
    cdef int64_t count
    cdef int64_t base
    cdef int64_t highest

    def __cinit__(self, int64_t limit_bytes):
        self.out = PyByteArray_FromStringAndSize(NULL, FIRST_CAPACITY)
        memset(PyByteArray_AS_STRING(self.out), 0, HEADER_SPACE)
        self.limit = limit_bytes
        self.position = HEADER_SPACE
        self.base = self.highest = -1

    @property
    def limit_bytes(self):
        return self.limit

    @limit_bytes.setter
    def limit_bytes(self, int64_t limit_bytes):
        self.limit = limit_bytes

    @property
    def size_bytes(self):
        return self.position

    @property
    def record_count(self):
        return self.count

    @property
    def base_timestamp_ms(self):
        return self.base

    @property
    def max_timestamp_ms(self):
        return self.highest

    def append(self, int64_t timestamp_ms, key, value, headers=()):
        cdef const uint8_t *key_data
        cdef const uint8_t *value_data
        cdef Py_ssize_t key_size, value_size
        cdef int64_t body_size, need
        cdef int64_t delta
        cdef bytes header_bytes = _encode_headers(headers) if headers else _NO_HEADERS
        cdef _Piece key_piece = None
        cdef _Piece value_piece = None
        cdef uint8_t *target
        if self.out is None:
            return -1
        if type(key) is bytes:
            key_data = <const uint8_t *>PyBytes_AS_STRING(key)
            key_size = PyBytes_GET_SIZE(key)
        elif key is None:
            key_data = NULL
            key_size = -1
        else:
            key_piece = _Piece()
            key_piece.take(key)
            key_data = key_piece.data
            key_size = key_piece.size
        if type(value) is bytes:
            value_data = <const uint8_t *>PyBytes_AS_STRING(value)
            value_size = PyBytes_GET_SIZE(value)
        elif value is None:
            value_data = NULL
            value_size = -1
        else:
            value_piece = _Piece()
            value_piece.take(value)
            value_data = value_piece.data
            value_size = value_piece.size
        if self.count >= INT32_MAX:
            return -1
        delta = _difference(timestamp_ms, self.base if self.count else timestamp_ms)
        body_size = _body_size(
            <int32_t>self.count, delta, key_size, value_size, PyBytes_GET_SIZE(header_bytes)
        )
        need = self.position + _varint_size(body_size) + body_size
        if need > self.limit and self.count:
            return -1
        if need > INT32_MAX:
            raise OverflowError(f"a batch of {need} bytes")
        if need > PyByteArray_GET_SIZE(self.out):
            # Doubled, but not beyond what the batch may ever hold.
            PyByteArray_Resize(self.out, max(need, min(2 * need, self.limit)))
        target = _write_record(
            <uint8_t *>PyByteArray_AS_STRING(self.out) + self.position,
            body_size,
            <int32_t>self.count,
            delta,
            key_data,
            key_size,
            value_data,
            value_size,
        )
        if PyBytes_GET_SIZE(header_bytes) == 1:
            target[0] = 0
        else:
            memcpy(target, PyBytes_AS_STRING(header_bytes), PyBytes_GET_SIZE(header_bytes))
        self.position = need
        if self.count == 0:
            self.base = self.highest = timestamp_ms
        elif timestamp_ms > self.highest:
            self.highest = timestamp_ms
        self.count += 1
        return self.count - 1

    def take(self):
        cdef bytearray out = self.out
        if out is None:
            raise ValueError("the buffer was taken before")
        self.out = None
        PyByteArray_Resize(out, self.position)
        return out

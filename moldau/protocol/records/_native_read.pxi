# Part of _native.pyx: varints and records, read. Every length is checked before it is used.

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

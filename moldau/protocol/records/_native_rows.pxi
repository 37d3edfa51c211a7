# Part of _native.pyx: columns into record sections. The callers' buffers are not trusted: each
# offset is checked where it is used, while measuring and again while writing.

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
    bint is_selected
    Flat selection


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


cdef inline int64_t _selected(Rows *rows, int64_t at) noexcept nogil:
    """The number of the row at a place of the selection, if there is one; -1 outside of it."""
    if not rows.is_selected:
        return at
    if 4 * (at + 1) > rows.selection.size:
        return -1
    return _int32_at(&rows.selection, at)


cdef inline int _row_at(Rows *rows, int64_t at, int64_t offset_delta, int64_t base, Row *row) \
        noexcept nogil:
    """Everything about the row at a place, as a record with that offset delta and base time."""
    cdef int64_t index = _selected(rows, at)
    if index < 0:
        return MALFORMED
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
    """Write `count` rows into exactly `[out, limit)`; MALFORMED when they changed since they were measured."""
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
    selection=None,
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
    if selection is not None:
        flat = _Flat(selection)
        held.append(flat)
        rows.is_selected = True
        rows.selection = _flat(flat)
    if (
        start < 0
        or start >= stop
        or (selection is not None and 4 * stop > rows.selection.size)
        or _selected(&rows, start) < 0
        or _timestamp_at(&rows, _selected(&rows, start), &base) != OK
    ):
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


def scaled_int64s(numbers, int64_t factor):
    """See `columns_pure.scaled_int64s`."""
    cdef _Flat flat = _Flat(numbers)
    cdef Flat column = _flat(flat)
    cdef Py_ssize_t count = flat.size // 8
    cdef Py_ssize_t index
    cdef bytearray out = _uninitialized(8 * count)
    cdef int64_t *scaled = <int64_t *>PyByteArray_AS_STRING(out)
    cdef int64_t number
    cdef int64_t limit
    if factor < 1:
        raise ValueError(f"factor {factor}")
    limit = INT64_MAX // factor
    with nogil:
        for index in range(count):
            memcpy(&number, column.data + 8 * index, 8)
            if number > limit:
                scaled[index] = INT64_MAX
            elif number < -limit:
                scaled[index] = INT64_MIN
            else:
                scaled[index] = number * factor
    return out

# Part of _native.pyx: record sections into columns.

cdef class _Section:
    """A batch's uncompressed records, held while they are read."""

    cdef Py_buffer view
    cdef bint held
    cdef Py_ssize_t count
    cdef int64_t base_offset
    cdef int64_t base_timestamp_ms
    cdef bint has_append_time
    cdef int64_t append_time_ms
    cdef Py_ssize_t position
    cdef Py_ssize_t index
    cdef Py_ssize_t first_position
    cdef Py_ssize_t taken

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
    Py_ssize_t key_capacity
    Py_ssize_t value_capacity
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
    """One section into the columns, behind what is there; NO_ROOM in front of what does not fit."""
    cdef Span span
    cdef Py_ssize_t row, start
    cdef int status
    while index[0] < facts.count:
        start = position[0]
        status = _read_record(data, size, position, facts.base_timestamp_ms, &span)
        if status != OK:
            return status
        row = columns.row
        if (
            row >= columns.capacity
            or columns.key_bytes + span.key_size > columns.key_capacity
            or columns.value_bytes + span.value_size > columns.value_capacity
        ):
            position[0] = start
            return NO_ROOM
        columns.offsets[row] = facts.base_offset + span.offset_delta
        columns.timestamps[row] = (
            facts.append_time_ms if facts.has_append_time else span.timestamp_ms
        )
        if span.key_size >= 0:
            memcpy(columns.key_data + columns.key_bytes, data + span.key_at, span.key_size)
            columns.key_bytes += span.key_size
        else:
            columns.key_validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
            columns.null_keys += 1
        if span.value_size >= 0:
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
    fault, columns = _decode_held(held, total_count, total_bytes, None)
    if fault is not None:
        number, error = fault
        raise error.at(sections[number][0])
    return columns


cdef tuple _decode_held(
    list held, Py_ssize_t row_limit, Py_ssize_t total_bytes, bytearray value_memory
):
    """Rows from where the sections stand, up to the limit or the first fault.

    `value_memory`: where the values go if they fit, so that no fresh memory is touched for them.

    Returns (None or (number of the section, its error), columns); the sections are where the
    reading has stopped, and know from where they were read and how many rows they gave.
    """
    cdef _Section section
    cdef Columns columns
    cdef _SectionFacts facts
    cdef int status
    cdef object fault = None
    cdef object value_view = None
    cdef bytearray key_data, value_data
    memset(&columns, 0, sizeof(Columns))
    columns.capacity = row_limit
    columns.key_capacity = min(total_bytes, FIRST_KEY_BYTES)
    columns.value_capacity = total_bytes
    offsets = _uninitialized(8 * row_limit)
    timestamps = _uninitialized(8 * row_limit)
    key_ends = _uninitialized(4 * (row_limit + 1))
    value_ends = _uninitialized(4 * (row_limit + 1))
    header_ends = _uninitialized(4 * (row_limit + 1))
    key_validity = _all_valid(row_limit)
    value_validity = _all_valid(row_limit)
    key_data = _uninitialized(columns.key_capacity)
    if value_memory is None or PyByteArray_GET_SIZE(value_memory) < total_bytes:
        value_data = _uninitialized(total_bytes)
    else:
        # The view keeps others from changing its size.
        value_data = value_memory
        value_view = memoryview(value_memory)
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
    for section in held:
        section.first_position = section.position
        section.taken = 0
    for number, section in enumerate(held):
        section.taken = -section.index
        facts.count = min(section.count, section.index + (row_limit - columns.row))
        facts.base_offset = section.base_offset
        facts.base_timestamp_ms = section.base_timestamp_ms
        facts.has_append_time = section.has_append_time
        facts.append_time_ms = section.append_time_ms
        while True:
            with nogil:
                status = _read_columns(
                    <const uint8_t *>section.view.buf,
                    section.view.len,
                    facts,
                    &columns,
                    &section.position,
                    &section.index,
                )
            if status != NO_ROOM or columns.key_capacity == total_bytes:
                break
            columns.key_capacity = min(total_bytes, 4 * columns.key_capacity)
            PyByteArray_Resize(key_data, columns.key_capacity)
            columns.key_data = <uint8_t *>PyByteArray_AS_STRING(key_data)
        section.taken += section.index
        try:
            if status == MALFORMED or status == NO_ROOM:
                raise _malformed(section.index)
            if facts.count == section.count or status == EXHAUSTED:
                check_consumed(
                    section.index, section.count, section.view.len - section.position
                )
        except InvalidBatch as error:
            fault = number, error
            break
    if columns.row < row_limit:
        _trim(offsets, timestamps, key_ends, value_ends, header_ends, columns.row)
        _trim_validity(key_validity, columns.row)
        _trim_validity(value_validity, columns.row)
    PyByteArray_Resize(key_data, columns.key_bytes)
    if value_view is None:
        PyByteArray_Resize(value_data, columns.value_bytes)
        values = value_data
    else:
        values = value_view[: columns.value_bytes]
    return fault, (
        columns.row,
        offsets,
        timestamps,
        (key_ends, key_validity if columns.null_keys else None, key_data),
        (value_ends, value_validity if columns.null_values else None, values),
        _decode_header_columns(held, header_ends, &columns) if columns.header_count else None,
    )


cdef int _trim(
    bytearray offsets,
    bytearray timestamps,
    bytearray key_ends,
    bytearray value_ends,
    bytearray header_ends,
    Py_ssize_t count,
) except -1:
    PyByteArray_Resize(offsets, 8 * count)
    PyByteArray_Resize(timestamps, 8 * count)
    PyByteArray_Resize(key_ends, 4 * (count + 1))
    PyByteArray_Resize(value_ends, 4 * (count + 1))
    PyByteArray_Resize(header_ends, 4 * (count + 1))
    return 0


cdef int _trim_validity(bytearray bitmap, Py_ssize_t count) except -1:
    """Cut the bitmap to `count` bits, the padding bits zero."""
    cdef uint8_t *bits
    PyByteArray_Resize(bitmap, (count + 7) // 8)
    if count & 7:
        bits = <uint8_t *>PyByteArray_AS_STRING(bitmap)
        bits[count >> 3] &= <uint8_t>((1 << (count & 7)) - 1)
    return 0


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
        position = section.first_position
        for record in range(section.taken):
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

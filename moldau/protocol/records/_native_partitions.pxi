# Part of _native.pyx: which partition a key belongs to, and rows put in order by partition.

cdef inline uint32_t _murmur2(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """MurmurHash2 (Austin Appleby) with the seed of Kafka's Java client."""
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t at = 0
    while at + 4 <= size:
        k = (
            <uint32_t>data[at]
            | <uint32_t>data[at + 1] << 8
            | <uint32_t>data[at + 2] << 16
            | <uint32_t>data[at + 3] << 24
        )
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        at += 4
    if size - at == 3:
        h ^= <uint32_t>data[at + 2] << 16
    if size - at >= 2:
        h ^= <uint32_t>data[at + 1] << 8
    if size - at >= 1:
        h ^= <uint32_t>data[at]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


def murmur2(key):
    """See `columns_pure.murmur2`."""
    cdef _Flat flat
    if type(key) is bytes:
        return _murmur2(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    if key is None:
        raise TypeError("a key of bytes is needed, not None")
    flat = _Flat(key)
    return _murmur2(flat.data, flat.size)


def murmur2_partition(key, int32_t partition_count):
    """See `columns_pure.murmur2_partition`."""
    if partition_count <= 0:
        raise ValueError(f"{partition_count} partitions")
    return (<uint32_t>murmur2(key) & 0x7FFFFFFF) % <uint32_t>partition_count


def partition_rows(tuple keys, Py_ssize_t row_count, int32_t partition_count, selection=None):
    """See `columns_pure.partition_rows`."""
    cdef _Flat ends = _Flat(keys[0])
    cdef _Flat validity = _Flat(keys[1])
    cdef _Flat contents = _Flat(keys[2])
    cdef Strings strings = _strings(ends, validity, contents)
    cdef _Flat chosen = _Flat(selection)
    cdef bint is_selected = selection is not None
    cdef Flat numbers = _flat(chosen)
    cdef bytearray out
    cdef int32_t *partitions
    cdef const uint8_t *data
    cdef int64_t size
    cdef Py_ssize_t row = 0
    cdef int status = OK
    if partition_count <= 0:
        raise ValueError(f"{partition_count} partitions")
    if is_selected and 4 * row_count > numbers.size:
        raise ValueError(f"{row_count} rows in a selection of {numbers.size // 4}")
    out = _uninitialized(4 * row_count)
    partitions = <int32_t *>PyByteArray_AS_STRING(out)
    with nogil:
        while row < row_count:
            status = _string_at(
                &strings, _int32_at(&numbers, row) if is_selected else row, &data, &size
            )
            if status != OK:
                break
            partitions[row] = -1
            if size >= 0:
                partitions[row] = <int32_t>(
                    (_murmur2(data, size) & 0x7FFFFFFF) % <uint32_t>partition_count
                )
            row += 1
    if status != OK:
        raise ValueError(f"row {row}: offsets outside the column's buffers")
    return out


def group_rows(groups, int32_t group_count):
    """See `columns_pure.group_rows`."""
    cdef _Flat flat = _Flat(groups)
    cdef Flat column = _flat(flat)
    cdef Py_ssize_t row_count = flat.size // 4
    cdef Py_ssize_t row = 0
    cdef int32_t group = -1
    cdef bytearray selection
    cdef bytearray next_of
    cdef int32_t *rows
    cdef int32_t *next_places
    cdef list bounds = []
    cdef int32_t place = 0
    cdef int32_t size
    if group_count < 0 or row_count > INT32_MAX:
        raise ValueError(f"{row_count} rows in {group_count} groups")
    selection = _uninitialized(4 * row_count)
    next_of = bytearray(4 * (group_count + 1))
    rows = <int32_t *>PyByteArray_AS_STRING(selection)
    next_places = <int32_t *>PyByteArray_AS_STRING(next_of)
    with nogil:
        while row < row_count:
            group = _int32_at(&column, row)
            if group < -1 or group >= group_count:
                break
            next_places[group + 1] += 1
            row += 1
    if row < row_count:
        raise ValueError(f"row {row}: group {group} of {group_count}")
    for group in range(group_count + 1):
        size = next_places[group]
        if size:
            bounds.append((group - 1, place, place + size))
        next_places[group] = place
        place += size
    with nogil:
        for row in range(row_count):
            group = _int32_at(&column, row)
            if group < -1 or group >= group_count or next_places[group + 1] >= row_count:
                break  # another thread changes the column: what comes out is its own affair
            rows[next_places[group + 1]] = <int32_t>row
            next_places[group + 1] += 1
    return selection, bounds

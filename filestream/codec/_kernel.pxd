# Types that pure mode cannot spell.
from libc.stdint cimport uint8_t, uint32_t

ctypedef const uint8_t* Source
ctypedef uint32_t (*CrcExtend)(uint32_t crc, const uint8_t* data, size_t count) noexcept nogil

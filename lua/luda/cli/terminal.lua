--- What little of the terminal the commands need.

local ffi = require "ffi"

ffi.cdef "int isatty(int fd);"

return {
  --- True if the file descriptor is a terminal.
  ---@param descriptor integer
  ---@return boolean
  is_terminal = function(descriptor)
    return ffi.C.isatty(descriptor) == 1
  end,
}

--- The data set of the section data: pictures in bytes become floats, one at a time.

local luda = require "luda"

return function(args)
  return luda.data.dataset(args.pictures:size(1), function(i)
    return { picture = args.pictures[i]:to("f32") / 255, label = i % 10 + 1 }
  end)
end

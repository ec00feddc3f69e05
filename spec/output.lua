--- The plain terminal report with a last line that a script can count.
return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.plainTerminal"(options)
  busted.subscribe({ "exit" }, function()
    io.write(("%d passed, %d failed, %d skipped\n"):format(handler.successesCount,
      handler.failuresCount + handler.errorsCount, handler.pendingsCount))
    io.flush()
    return nil, true
  end, { priority = 1000 })
  return handler
end

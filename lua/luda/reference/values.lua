--- Asking and keeping: examples, and what the operator table does not say.

return {
  title = "Asking and keeping",
  text = "What a tensor holds as Lua values, and how long it lives.",
  { "size", "luda.tensor({ { 1, 2, 3 } }):size(), luda.tensor({ { 1, 2, 3 } }):size(2)", "{1, 3}; 3",
    call = "size(t, dim=)", types = "ANY", gradient = "zero", shape = "a list of sizes, or one of them" },
  { "item", "luda.tensor({ 3 }):item()", "3",
    call = "item(t)", types = "ANY", gradient = "zero", shape = "a Lua number or boolean" },
  { "totable", "luda.tensor({ { 1, 2 } }):totable()", "{{1, 2}}",
    call = "totable(t)", types = "ANY", gradient = "zero", shape = "nested Lua lists" },
  { "tolist", "luda.tensor({ { 1, 2 } }):tolist()", "{{1, 2}}",
    call = "tolist(t)", types = "ANY", gradient = "zero", shape = "nested Lua lists" },
  { "keep", "luda.tensor({ 1 }):keep()", "{1}", call = "keep(t)", types = "ANY", gradient = "yes", shape = "same" },
  { "pin", "luda.ones(1):pin()", "{1}",
    call = "pin(t)", types = "ANY", gradient = "yes", shape = "same" },
  { "release", "luda.tensor({ 1 }):release()", "nothing",
    call = "release(t)", types = "ANY", gradient = "zero", shape = "no result" },
}

# Writes a C++ file that holds files as bytes:
#   cmake -DOUTPUT=x.cpp -DFILES=a.js,b.css -P embed.cmake
# Needs no tool beside CMake. It defines embedded_files() of page.h.
string(REPLACE "," ";" files "${FILES}")
set(rows "")
foreach(path IN LISTS files)
  get_filename_component(name "${path}" NAME)
  file(SIZE "${path}" size)
  file(SHA256 "${path}" hash)
  string(SUBSTRING "${hash}" 0 32 tag)
  file(READ "${path}" bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
  string(APPEND rows "    {\"${name}\", \"\\\"${tag}\\\"\", {\"${bytes}\", ${size}}},\n")
endforeach()
file(WRITE "${OUTPUT}.new" "#include \"server/ui/page.h\"

namespace lockstep {
namespace {

constexpr EmbeddedFile kFiles[] = {
${rows}};

}  // namespace

std::span<const EmbeddedFile> embedded_files() {
  return kFiles;
}

}  // namespace lockstep
")
file(RENAME "${OUTPUT}.new" "${OUTPUT}")

# cachec for CMake 3.20 or later: find_package(cachec).
#
#   cachec_add_program(NAME
#     INPUT model.mlir...            what is compiled; relative to the source folder, or the binary folder where it is made
#     OUTPUT model.vmfb...           what is written; relative to the binary folder
#     COMPILER iree-compile          a name in PATH, a path, or an executable target
#     [OPTIONS flag...]              `<INPUT>` and `<OUTPUT>` stand for the files; without them the line is
#                                    COMPILER INPUT... -o OUTPUT OPTIONS...
#     [WEIGHTS file[=content|opened|name]...]
#                                    as `cachec exec --weights`; a file keyed by name does not start the build again
#     [ENVIRONMENT variable...]      variables that are in the key, whatever their names
#     [TOOLS command...]             executables that it starts
#     [DEPENDS file-or-target...]    what else has to be there first
#     [DEPFILE file]                 written by the compiler, in the syntax of Make
#     [COMMENT text] [STRIP] [PORTABLE] [RELOCATABLE] [DESCRIBE]
#     [EXCLUDE_FROM_ALL])
#
# adds the target NAME, with the property CACHEC_OUTPUT: the paths of what it writes. STRIP: the compiler gets the model
# without weights, which are written to OUTPUT.irpa. RELOCATABLE: what it writes holds no folder, so with base_dir other
# checkouts get it. DESCRIBE: INPUT counts, used or not, and OUTPUT is written, whatever the command line says.
#
#   cachec_launch_custom_commands([GLOBAL])
#
# puts `cachec exec --` before every command of add_custom_command and add_custom_target, of this folder and those below
# it, or of the whole project (the property RULE_LAUNCH_CUSTOM; Ninja and Makefile generators honour it).
#
#   cachec_launch_compilers(LANGUAGE...)
#
# puts it before the compilers of these languages, for what this folder and those below it add from here on (the
# variables CMAKE_<LANGUAGE>_COMPILER_LAUNCHER).
#
# Settings: CACHEC_EXECUTABLE, the command; CACHEC_BASE_DIR, the folder that paths in keys count from (two checkouts then
# share hits). Everything else is set as ever: cachec.toml, or CACHEC_* in the environment of the build.

find_program(
  CACHEC_EXECUTABLE cachec
  HINTS "${CMAKE_CURRENT_LIST_DIR}/../../../bin"
  DOC "The command cachec")
set(CACHEC_BASE_DIR "" CACHE PATH "Folder that paths in cachec's keys count from; empty: as cachec is configured")

if(NOT CACHEC_EXECUTABLE)
  set(cachec_FOUND FALSE)
  set(cachec_NOT_FOUND_MESSAGE
      "the command cachec is not in PATH; activate its environment, or set CACHEC_EXECUTABLE to its path")
  return()
endif()

# The words before a command line. ARGN: options of `cachec exec`.
function(_cachec_launcher out)
  set(words "${CACHEC_EXECUTABLE}" exec ${ARGN} --)
  if(CACHEC_BASE_DIR)
    list(PREPEND words env "CACHEC_BASE_DIR=${CACHEC_BASE_DIR}")
  endif()
  set(${out} "${words}" PARENT_SCOPE)
endfunction()

# `--restat` where the generator looks at time stamps again after a custom command: Ninja. To Make, an output that keeps
# its time stamp would be out of date for ever.
function(_cachec_restat out)
  set(${out} "" PARENT_SCOPE)
  if(CMAKE_GENERATOR MATCHES "Ninja")
    set(${out} --restat PARENT_SCOPE)
  endif()
endfunction()

# Absolute paths: of what is read (in the source folder, else where it will be made), or of what is written.
function(_cachec_paths out kind)
  set(found "")
  foreach(path IN LISTS ARGN)
    get_filename_component(source "${path}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    get_filename_component(binary "${path}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
    if(kind STREQUAL "read" AND EXISTS "${source}")
      list(APPEND found "${source}")
    else()
      list(APPEND found "${binary}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# What starts the compiler, and what the build has to look at to see that it changed.
function(_cachec_compiler name compiler out_command out_depends)
  if(TARGET "${compiler}")
    set(${out_command} "$<TARGET_FILE:${compiler}>" PARENT_SCOPE)
    set(${out_depends} "${compiler}" PARENT_SCOPE)
    return()
  endif()
  string(MAKE_C_IDENTIFIER "CACHEC_COMPILER_${compiler}" variable)
  if(IS_ABSOLUTE "${compiler}" AND EXISTS "${compiler}")
    set(${variable} "${compiler}")
  else()
    find_program(${variable} "${compiler}" DOC "A compiler that cachec_add_program calls")
    mark_as_advanced(${variable})
  endif()
  if(NOT ${variable})
    message(
      FATAL_ERROR
        "cachec_add_program(${name}): COMPILER ${compiler} is not there. Expected an executable in PATH, a path or a "
        "target. Install it, or set ${variable} to its path.")
  endif()
  set(${out_command} "${${variable}}" PARENT_SCOPE)
  set(${out_depends} "${${variable}}" PARENT_SCOPE)
endfunction()

# The command line, with `<INPUT>` and `<OUTPUT>` filled in, or inputs and outputs where compilers usually have them.
function(_cachec_line out compiler inputs outputs options)
  set(words "")
  set(named "")
  foreach(word IN LISTS options)
    foreach(kind IN ITEMS INPUT OUTPUT)
      string(FIND "${word}" "<${kind}>" at)
      if(at EQUAL -1)
        continue()
      endif()
      list(APPEND named ${kind})
      if(kind STREQUAL "INPUT")
        set(files "${inputs}")
      else()
        set(files "${outputs}")
      endif()
      if(NOT word STREQUAL "<${kind}>")
        list(GET files 0 files) # within a word there is room for one
      endif()
      string(REPLACE "<${kind}>" "${files}" word "${word}")
    endforeach()
    list(APPEND words ${word})
  endforeach()
  set(before "")
  if(NOT "INPUT" IN_LIST named)
    list(APPEND before ${inputs})
  endif()
  if(NOT "OUTPUT" IN_LIST named)
    list(GET outputs 0 first)
    list(APPEND before -o "${first}")
  endif()
  set(${out} "${compiler}" ${before} ${words} PARENT_SCOPE)
endfunction()

# The options of `cachec exec` for weights, and the files among them that start the build again.
function(_cachec_weights name out_options out_depends)
  set(options "")
  set(depends "")
  foreach(item IN LISTS ARGN)
    set(key content)
    set(path "${item}")
    if(item MATCHES "^(.+)=(content|opened|name)$")
      set(path "${CMAKE_MATCH_1}")
      set(key "${CMAKE_MATCH_2}")
    endif()
    _cachec_paths(path read "${path}")
    list(APPEND options --weights "${path}=${key}")
    if(NOT key STREQUAL "name")
      list(APPEND depends "${path}")
    endif()
  endforeach()
  set(${out_options} "${options}" PARENT_SCOPE)
  set(${out_depends} "${depends}" PARENT_SCOPE)
endfunction()

function(cachec_add_program name)
  set(switches STRIP PORTABLE RELOCATABLE DESCRIBE EXCLUDE_FROM_ALL)
  set(single COMPILER DEPFILE COMMENT)
  set(several INPUT OUTPUT OPTIONS WEIGHTS ENVIRONMENT TOOLS DEPENDS)
  cmake_parse_arguments(PARSE_ARGV 1 arg "${switches}" "${single}" "${several}")
  if(DEFINED arg_UNPARSED_ARGUMENTS)
    message(
      FATAL_ERROR
        "cachec_add_program(${name}): \"${arg_UNPARSED_ARGUMENTS}\" belongs to no keyword. The keywords are "
        "INPUT OUTPUT COMPILER OPTIONS WEIGHTS ENVIRONMENT TOOLS DEPENDS DEPFILE COMMENT STRIP PORTABLE "
        "RELOCATABLE DESCRIBE EXCLUDE_FROM_ALL.")
  endif()
  foreach(keyword IN ITEMS INPUT OUTPUT COMPILER)
    if(NOT arg_${keyword})
      message(FATAL_ERROR "cachec_add_program(${name}): ${keyword} is missing; give at least INPUT, OUTPUT and COMPILER.")
    endif()
  endforeach()

  _cachec_paths(inputs read ${arg_INPUT})
  _cachec_paths(outputs written ${arg_OUTPUT})
  _cachec_compiler("${name}" "${arg_COMPILER}" compiler compiler_file)
  _cachec_weights("${name}" options weight_files ${arg_WEIGHTS})
  foreach(variable IN LISTS arg_ENVIRONMENT)
    list(APPEND options --env "${variable}")
  endforeach()
  foreach(tool IN LISTS arg_TOOLS)
    list(APPEND options --tool "${tool}")
  endforeach()
  if(arg_DESCRIBE)
    foreach(path IN LISTS inputs)
      list(APPEND options --input "${path}")
    endforeach()
    foreach(path IN LISTS outputs)
      list(APPEND options --output "${path}")
    endforeach()
  endif()
  set(beside "")
  if(arg_STRIP)
    list(APPEND options --strip)
    list(GET outputs 0 first)
    set(beside BYPRODUCTS "${first}.irpa")
  endif()
  if(arg_PORTABLE)
    list(APPEND options --portable)
  endif()
  if(arg_RELOCATABLE)
    list(APPEND options --relocatable)
  endif()
  _cachec_restat(restat)
  list(APPEND options ${restat})

  foreach(path IN LISTS outputs) # Make has no such habit
    get_filename_component(folder "${path}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
  endforeach()
  _cachec_launcher(launcher ${options})
  _cachec_line(line "${compiler}" "${inputs}" "${outputs}" "${arg_OPTIONS}")
  set(extra "")
  if(arg_DEPFILE)
    _cachec_paths(depfile written "${arg_DEPFILE}")
    list(APPEND extra DEPFILE "${depfile}")
  endif()
  if(NOT arg_COMMENT)
    set(arg_COMMENT "Compiling ${name}")
  endif()
  add_custom_command(
    OUTPUT ${outputs} ${beside}
    COMMAND ${launcher} ${line}
    DEPENDS ${inputs} ${weight_files} ${compiler_file} ${arg_DEPENDS}
    COMMENT "${arg_COMMENT}" ${extra}
    VERBATIM)
  if(arg_EXCLUDE_FROM_ALL)
    add_custom_target("${name}" DEPENDS ${outputs})
  else()
    add_custom_target("${name}" ALL DEPENDS ${outputs})
  endif()
  # It has its launcher. That of the folder would be a second one: Makefiles honour this, and cachec sees it otherwise.
  set_target_properties("${name}" PROPERTIES CACHEC_OUTPUT "${outputs}" RULE_LAUNCH_CUSTOM "")
endfunction()

function(cachec_launch_compilers)
  _cachec_launcher(launcher)
  foreach(language IN LISTS ARGN)
    set(CMAKE_${language}_COMPILER_LAUNCHER "${launcher}" PARENT_SCOPE)
  endforeach()
endfunction()

function(cachec_launch_custom_commands)
  cmake_parse_arguments(PARSE_ARGV 0 arg "GLOBAL" "" "")
  if(DEFINED arg_UNPARSED_ARGUMENTS)
    message(
      FATAL_ERROR "cachec_launch_custom_commands: \"${arg_UNPARSED_ARGUMENTS}\" is not understood; the one keyword is GLOBAL.")
  endif()
  if(NOT CMAKE_GENERATOR MATCHES "Ninja|Makefiles")
    message(WARNING "cachec_launch_custom_commands: the generator ${CMAKE_GENERATOR} knows no launchers; use Ninja.")
  endif()
  _cachec_restat(restat)
  _cachec_launcher(words ${restat})
  set(line "")
  foreach(word IN LISTS words) # it becomes text of a shell
    if(NOT word MATCHES "^[A-Za-z0-9_./=:,+@%-]+$")
      string(REPLACE "'" "'\\''" word "${word}")
      set(word "'${word}'")
    endif()
    string(APPEND line "${word} ")
  endforeach()
  string(STRIP "${line}" line)
  if(arg_GLOBAL)
    set_property(GLOBAL PROPERTY RULE_LAUNCH_CUSTOM "${line}")
  else()
    set_property(DIRECTORY PROPERTY RULE_LAUNCH_CUSTOM "${line}")
  endif()
endfunction()

// The program's log: spdlog's default logger. Messages are whole sentences that carry the values.
#pragma once

#include <spdlog/spdlog.h>

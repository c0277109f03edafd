// One function per endpoint; the table that gives them their paths is routes.cpp.
#pragma once

#include <functional>
#include <string>

#include "server/api/common/served_model.h"
#include "server/http/http_request.h"
#include "server/http/http_response.h"

namespace lockstep {

void post_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_chat_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_embeddings(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_responses(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_messages(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_count_tokens(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_models(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_model(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_tokenize(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_detokenize(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_tokenizer_info(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void post_apply_template(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_openapi(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_version(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_live(ServedModel& model, const HttpRequest& request, HttpResponse& response);
void get_ready(ServedModel& model, const HttpRequest& request, HttpResponse& response);

}  // namespace lockstep

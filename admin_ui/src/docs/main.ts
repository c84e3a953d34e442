/** The page /docs: the platform's own description, shown by Swagger UI. No part of the portal. */

import "swagger-ui-dist/swagger-ui.css";
import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import { at } from "../api/base";

SwaggerUI({
  dom_id: "#docs",
  url: at("/openapi.json"),
  deepLinking: true,
  // Swagger's own validator would be told the address of this server.
  validatorUrl: null,
});
